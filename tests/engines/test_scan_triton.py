"""The GPU's pass over time, interpreted on a CPU or compiled on a GPU, against the reference in float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from operators import flat
from trellis.emissions import Categorical, Partition
from trellis.engines import reference
from trellis.inference import discrete
from trellis.testing.problems import random_problem, transition_of
from trellis.transitions import Blocks, Dense, LogitBlocks, SetBlocks, SplitBlocks
from trellis.types import Belief, Potentials

pytest.importorskip("triton", reason="Triton is not installed")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

from trellis.engines import triton as engine  # noqa: E402
from trellis.kernels.scan.triton import shape_of  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
SHAPES = pytest.mark.parametrize(("batch", "steps", "states"), [(1, 1, 1), (3, 4, 2), (2, 5, 17), (2, 3, 40)])
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


KINDS = {  # blocks from a matrix and a vector
    "probabilities": lambda blocks, norm: transition_of(blocks),
    "logits": LogitBlocks,
    "split": SplitBlocks,
}


class Case:
    """One random chain over blocks of one of the KINDS, in a given precision."""

    def __init__(self, shape: tuple[int, int, int], kind: str, dtype: torch.dtype, device: torch.device) -> None:
        batch, steps, states = shape
        plain = kind == "probabilities"
        choices: dict[str, Any] = {"varying": "sequence", "missing": 0.2, "shortest": 0}
        given = random_problem(7, batch, steps, states, 9, zeros=0.1 * plain, **choices)
        generator = torch.Generator().manual_seed(1)
        shift = torch.randn(batch, max(steps - 1, 0), states, generator=generator, dtype=torch.float64)
        raw = [given.transition.matrix, shift, given.prior.probs, given.potentials.table]
        if not plain:
            raw[0] = raw[0].log() + shift.unsqueeze(-1)
        self.leaves = [tensor.to(device, dtype).requires_grad_() for tensor in raw]
        blocks, norm, prior, table = self.leaves
        transition = KINDS[kind](blocks, norm)
        rows, lengths = given.potentials.rows.to(device), given.lengths.to(device)
        self.given: tuple[Any, ...] = Belief(prior), transition, Potentials(table, rows), lengths

    def gradients(self, module: Any) -> list[Tensor]:
        """Of a weighted sum of the normalisers and of the last belief."""
        log_norms, belief = module.score(*self.given)
        weights = torch.linspace(0.5, 1.5, log_norms.numel(), device=log_norms.device).view_as(log_norms)
        weights = weights.to(log_norms.dtype)
        finite = torch.where(log_norms > -torch.inf, log_norms, 0.0)
        loss = (finite * weights).sum() + (belief.probs * weights.flatten()[0]).square().sum()
        found = torch.autograd.grad(loss, self.leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(self.leaves, found, strict=True)]


def assert_agree(ours: Any, exact: Any) -> None:
    for one, other in zip(flat(ours), flat(exact), strict=True):
        torch.testing.assert_close(one.detach().cpu().double(), other.detach(), **TOLERANCE)


@SHAPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", ["score", "filter", "smooth", "expect"])
def test_outputs(batch: int, steps: int, states: int, kind: str, function: str) -> None:
    shape = batch, steps, states
    ours = Case(shape, kind, torch.float32, DEVICE).given
    exact = Case(shape, kind, torch.float64, torch.device("cpu")).given
    assert_agree(getattr(engine, function)(*ours), getattr(reference, function)(*exact))


@SHAPES
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(batch: int, steps: int, states: int, kind: str) -> None:
    shape = batch, steps, states
    ours = Case(shape, kind, torch.float32, DEVICE).gradients(engine)
    assert_agree(ours, Case(shape, kind, torch.float64, torch.device("cpu")).gradients(reference))


def test_tiles_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.kernels.scan.triton.TILE", 16 * 64)
    assert shape_of(40)["ROWS"] < 40
    test_gradients(2, 3, 40, "split")


LOW = {"rtol": 0.02, "atol": 0.02} if CUDA else TOLERANCE  # on a GPU, blocks and products are in bfloat16


def set_gradients(steps: int, states: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """log c_t of ragged sequences over the blocks between five sets of states, and gradients of a weighted sum."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, states, 20), (5, states, 20), (5, states), (4, states), (6, states)]
    raw = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    raw[:2] = [tensor.mul(0.4).bfloat16().double() for tensor in raw[:2]]
    raw[2], raw[3] = raw[2].abs() + 3, raw[3].softmax(-1)
    leaves = [tensor.to(device, dtype).requires_grad_() for tensor in raw]
    rows, words = (torch.randint(n, (4, steps), generator=generator).to(device) for n in (5, 6))
    lengths = torch.tensor([steps, max(steps - 1, 1), 0, steps], device=device)
    queries, keys, norms, prior, table = leaves
    score = engine.score_sets if dtype is torch.float32 else reference.score
    low = torch.bfloat16 if queries.is_cuda else queries.dtype
    blocks = SetBlocks(queries, keys, norms, rows, low, keys.detach().to(low))
    log_norms, belief = score(Belief(prior), blocks, Potentials(table, words), lengths)
    weights = torch.linspace(0.5, 1.5, log_norms.numel(), device=device, dtype=dtype).view_as(log_norms)
    loss = (log_norms * weights).sum() + (belief.probs * states).square().sum()
    return log_norms, list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize(("steps", "states"), [(1, 3), (2, 16), (6, 17), (5, 40)])
def test_blocks_between_sets(steps: int, states: int) -> None:
    log_norms, ours = set_gradients(steps, states, torch.float32, DEVICE)
    exact, theirs = set_gradients(steps, states, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(log_norms.cpu().double(), exact, **LOW)
    for one, other in zip(ours, theirs, strict=True):
        scale = max(float(other.abs().max()), 1e-9)
        torch.testing.assert_close(one.cpu().double() / scale, other / scale, **LOW)


@pytest.mark.parametrize("sizes", [[3, 3], [40] * 3, [3, 1, 2]], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 5])
@torch.no_grad()
def test_expected_transitions_between_classes(sizes: list[int], steps: int) -> None:
    generator, states = torch.Generator().manual_seed(steps), sum(sizes)
    partition = Partition(torch.arange(9) % len(sizes), sizes)
    table = torch.rand(9, partition.live, generator=generator, dtype=torch.float64).log()
    table = table if partition.allowed is None else table.masked_fill(~partition.allowed, -torch.inf)
    matrix, prior = (torch.rand(n, states, generator=generator, dtype=torch.float64).softmax(-1) for n in (states, 4))
    words = torch.randint(9, (4, steps), generator=generator)
    lengths = torch.tensor([steps, 1, 0, steps])
    counts = []
    for dtype, device in ((torch.float64, torch.device("cpu")), (torch.float32, DEVICE)):
        given = [tensor.to(device, dtype) for tensor in (table, matrix, prior)]
        potentials = Categorical(given[0], partition.to(device), states).potentials(words.to(device))
        dense = Dense(given[1])
        chain = discrete.live_chain(Belief(given[2]), dense, potentials, lengths.to(device))
        if dtype is torch.float64:
            found = reference.expect(chain.prior, Blocks(chain.transition.matrix), *chain[2:4])
        else:
            found = engine.expect(*chain[:4])
            assert (found.moves.dim() == 2) == (len(set(sizes)) == 1)
        moves, ids = found.moves, chain.ids
        moves = moves if moves.dim() == 2 else dense.collect(ids[:, :-1], ids[:, 1:], moves)
        counts.append(found._replace(moves=moves))
    assert_agree(counts[1], counts[0])
