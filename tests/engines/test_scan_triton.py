"""The GPU's pass over time, interpreted on a CPU or compiled on a GPU, against the reference in float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from operators import flat
from trellis.engines import reference
from trellis.testing.problems import random_problem, transition_of
from trellis.transitions import LogitBlocks
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


class Case:
    """One random chain over blocks: probabilities or logits, in a given precision."""

    def __init__(self, shape: tuple[int, int, int], logits: bool, dtype: torch.dtype, device: torch.device) -> None:
        batch, steps, states = shape
        zeros = 0.0 if logits else 0.1
        given = random_problem(7, batch, steps, states, 9, varying="sequence", zeros=zeros, missing=0.2, shortest=0)
        generator = torch.Generator().manual_seed(1)
        shift = torch.randn(batch, max(steps - 1, 0), states, generator=generator, dtype=torch.float64)
        raw = [given.transition.matrix, shift, given.prior.probs, given.potentials.table]
        if logits:
            raw[0] = raw[0].log() + shift.unsqueeze(-1)
        self.leaves = [tensor.to(device, dtype).requires_grad_() for tensor in raw]
        blocks, norm, prior, table = self.leaves
        transition = LogitBlocks(blocks, norm) if logits else transition_of(blocks)
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
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("function", ["score", "filter", "smooth", "expect"])
def test_outputs(batch: int, steps: int, states: int, logits: bool, function: str) -> None:
    shape = batch, steps, states
    ours = Case(shape, logits, torch.float32, DEVICE).given
    exact = Case(shape, logits, torch.float64, torch.device("cpu")).given
    assert_agree(getattr(engine, function)(*ours), getattr(reference, function)(*exact))


@SHAPES
@pytest.mark.parametrize("logits", [False, True])
def test_gradients(batch: int, steps: int, states: int, logits: bool) -> None:
    shape = batch, steps, states
    ours = Case(shape, logits, torch.float32, DEVICE).gradients(engine)
    assert_agree(ours, Case(shape, logits, torch.float64, torch.device("cpu")).gradients(reference))


def test_tiles_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.kernels.scan.triton.TILE", 16 * 64)
    assert shape_of(40)["ROWS"] < 40
    test_gradients(2, 3, 40, True)
