"""The edges of a constraint joined by Triton (interpreted on a CPU, compiled on a GPU) against torch."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from test_constrained import SENTENCES, STREAM, VOCAB, random_automaton, small

from trellis.constraints import contains, one_of
from trellis.constraints.automaton import Automaton, side_by_side
from trellis.emissions import Categorical
from trellis.inference import constrained
from trellis.inference.constrained import Messages, Product
from trellis.inference.queries import Chain
from trellis.transitions import Dense
from trellis.types import Belief

kernels: Any = pytest.importorskip("trellis.kernels.edges.triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
CONSTRAINTS = [contains("a b") & contains("c"), contains("a"), one_of(["a b", "b", "c a"])]


def on_device(chain: Chain, dtype: torch.dtype = torch.float64) -> Chain:
    table, matrix = chain.emission.dense(), chain.transition.dense()
    prior, moves = Belief(chain.prior.probs.to(DEVICE, dtype)), Dense(matrix.to(DEVICE, dtype))
    return Chain(prior, moves, Categorical(table.to(DEVICE, dtype), None, len(matrix)))


def both(chain: Chain, automaton: Automaton, monkeypatch: pytest.MonkeyPatch, *others: Any) -> list[Messages]:
    """The messages and the relaxed messages of a constraint, with the kernel and without it."""
    found = []
    for installed in (True, False):
        monkeypatch.setattr(constrained, "edge_kernels", lambda _, chosen=installed: kernels if chosen else None)
        product = Product(chain, automaton, *others)
        found += [product.messages, product.relaxed]
    return found


def agree(found: list[Messages], dtype: torch.dtype = torch.float64) -> None:
    for ours, plain in zip(found[:2], found[2:], strict=True):
        for one, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("span", [SENTENCES, STREAM])
def test_messages(span: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SIZE", 4)
    for constraint in CONSTRAINTS:
        for states in (3, 4, 10):  # fewer than a program joins at a time, as many, and more
            chain = on_device(small(2, states=states).chain, dtype)
            agree(both(chain, constraint.compile(VOCAB), monkeypatch, span), dtype)


@pytest.mark.parametrize("span", [SENTENCES, STREAM])
def test_several_constraints_and_random_automata(span: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        together, starts = side_by_side([random_automaton([seed, n], 1 + n) for n in range(5)])
        agree(both(on_device(small(seed).chain), together, monkeypatch, span, None, starts))


def test_impossible_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state emits "b", so some messages are zero, and their scales are -inf."""
    chain = on_device(small(1).chain)
    table = chain.emission.dense().exp()
    table[1] = 0.0
    chain = chain._replace(emission=Categorical((table / table.sum(0)).log(), None, 3))
    for constraint in (*CONSTRAINTS, contains("b")):
        found = both(chain, constraint.compile(VOCAB), monkeypatch, SENTENCES)
        agree(found)
        assert not found[0].values.isnan().any()
    assert (found[0].scales == -torch.inf).any()


def test_very_improbable_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred words of probability 1e-4 each: 1e-400 is below the smallest number in float64."""
    table = torch.tensor([[1e-4, 0.5, 0.25, 0.2499]] * 2).T.log().contiguous()
    even = torch.full((2, 2), 0.5)
    chain = on_device(Chain(Belief(even[:1]), Dense(even), Categorical(table, None, 2)), torch.float32)
    automaton = contains("a", 100).compile(VOCAB)
    for messages in both(chain, automaton, monkeypatch, SENTENCES._replace(most=100)):
        assert not messages.values.isnan().any()
        assert messages.scales.min() == -torch.inf
        assert -950 < messages.scales[messages.scales.isfinite()].min() < -900
