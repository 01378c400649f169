"""Constrained tokens drawn by Triton (interpreted on a CPU, compiled on a GPU) against torch."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from test_constrained import SENTENCES, STREAM, VOCAB, small
from test_constrained_replay import CONSTRAINTS, all_positions, on_device
from test_guided import other_model
from torch import Tensor

from trellis.constraints import anything
from trellis.emissions import Categorical
from trellis.inference import constrained_sampling, guided
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_sampling import draw
from trellis.testing.problems import seeded
from trellis.transitions.base import search_cumulative

kernels: Any = pytest.importorskip("trellis.kernels.draws.triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)


def both(module: Any, monkeypatch: pytest.MonkeyPatch, work: Any) -> list[Any]:
    """The results of some work with the kernels and without them."""
    found = []
    for chosen in (kernels, None):
        monkeypatch.setattr(module, "draw_kernels", lambda _, chosen=chosen: chosen)
        found.append(work())
    return found


def plain(weights: Tensor, uniform: Tensor) -> Tensor:
    return search_cumulative(weights.double().cumsum(-1), uniform)


@pytest.mark.parametrize("length", [1, 3, 4, 10, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inversion(length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SIZE", 4)
    generator = seeded(length)
    weights = torch.rand(20, length, generator=generator, dtype=torch.float64)
    weights = (weights * (torch.rand(20, length, generator=generator) < 0.5)).to(DEVICE, dtype)
    weights[0] = 0.0
    uniform = torch.rand(20, 7, generator=generator, dtype=torch.float64).to(DEVICE)
    uniform[:, 0], uniform[:, 1] = 0.0, 1 - 1e-16
    found = kernels.invert(weights, uniform)
    assert torch.equal(found, plain(weights, uniform))
    assert torch.equal(kernels.invert(weights, uniform.T.contiguous().T), found)
    classes, chosen = torch.arange(length, device=DEVICE) % 3, torch.arange(20, device=DEVICE) % 3
    some = torch.where(classes == chosen.unsqueeze(-1), weights, 0.0)
    assert torch.equal(kernels.invert(weights, uniform, classes, chosen), plain(some, uniform))


def test_a_cumulative_weight_that_equals_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of an index begins at the cumulative weight before it, in a block and between blocks."""
    weights = torch.tensor([[1.0, 0.0, 1.0, 1.0, 0.0, 1.0]], device=DEVICE)
    uniform = torch.tensor([[0.0, 0.25, 0.5, 0.75]], dtype=torch.float64, device=DEVICE)
    for size in (2, 4, 8):
        monkeypatch.setattr(kernels, "SIZE", size)
        assert kernels.invert(weights, uniform).tolist() == [[0, 2, 3, 5]]


def products(span: Span, dtype: torch.dtype = torch.float64) -> list[Product]:
    """Constraints, one of which no state can satisfy by some words."""
    chain = on_device(small(2, states=5).chain)
    table = chain.emission.dense().exp()
    table[1] *= torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0], device=DEVICE)
    some = chain._replace(emission=Categorical((table / table.sum(0)).log(), None, 5))
    made = [(chain, constraint) for constraint in (*CONSTRAINTS, anything())]
    return [Product(one, c.compile(VOCAB), span) for one, c in [*made, (some, CONSTRAINTS[0])]]


def positions(product: Product) -> Position:
    return Position(*(part.to(DEVICE) for part in all_positions(product)))


@pytest.mark.parametrize("span", [SENTENCES, STREAM])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_proposals(span: Span, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SIZE", 2)
    monkeypatch.setattr(kernels, "CELLS", 4)
    for number, product in enumerate(products(span)):
        position = positions(product)
        batch = len(position.steps)
        log_probs = torch.cat([other_model(number), torch.full_like(other_model(0), -torch.inf)])
        log_probs = log_probs[torch.arange(batch) % 5 // 4].to(DEVICE)
        for tries in (1, 3):
            uniform = torch.rand(batch, 2, tries, generator=seeded(tries), dtype=torch.float64).to(DEVICE)
            ours, torchs = both(
                guided, monkeypatch, partial(guided.propose, product, position, log_probs, uniform, alpha)
            )
            assert torch.equal(ours, torchs)
            assert product.lattice.size == 0 or (ours >= 0).any()


@pytest.mark.parametrize("span", [SENTENCES, STREAM])
def test_tokens_of_the_chain(span: Span, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SIZE", 2)
    for product in products(span):
        product.side_by_side = True
        position = positions(product)
        possible = product.log_prob(position).isfinite()
        position = position.some(possible)
        numbers = torch.rand(3, len(position.steps), generator=seeded(1), dtype=torch.float64).to(DEVICE)
        ours, torchs = both(constrained_sampling, monkeypatch, partial(draw, product, position, numbers))
        assert torch.equal(ours.ends, torchs.ends)
        assert torch.equal(ours.states, torchs.states)
        assert torch.equal(ours.tokens[~ours.ends], torchs.tokens[~ours.ends])
