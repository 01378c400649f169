"""Sampling with CUDA graphs (pretended where there is no GPU) and without waiting for the device, against sampling step
by step."""

from __future__ import annotations

import pytest
import torch
from test_constrained import KINDS, SENTENCES, STREAM, VOCAB, small
from test_guided import CONSTRAINT, other_model

from replays import capture, replay_anywhere
from trellis.constraints import contains, one_of
from trellis.inference import constrained, constrained_sampling
from trellis.inference.constrained import Product
from trellis.inference.constrained_sampling import sample
from trellis.inference.guided import sample_next
from trellis.testing.problems import seeded
from trellis.transitions import Dense
from trellis.transitions.base import invert, invert_by_blocks

EXACT = 1e-10
CONSTRAINTS = [CONSTRAINT, contains("a b") & contains("c"), one_of(["a b", "b", "c a"])]


@pytest.mark.parametrize("span", [SENTENCES, STREAM])
@pytest.mark.parametrize(("moves", "emits"), KINDS)
def test_samples_are_those_of_single_steps(moves: str, emits: str, span: object, monkeypatch) -> None:
    replay_anywhere(monkeypatch)
    monkeypatch.setattr(constrained, "PATIENCE", 2)
    monkeypatch.setattr(constrained_sampling, "LOOKS", 2)
    for constraint in CONSTRAINTS:
        product = Product(small(2, moves, emits).chain, constraint.compile(VOCAB), span)
        if product.lattice.size == 0:
            continue
        wanted = [sample(product, product.begin(20), seeded(n)) for n in range(3)]
        before = product.before(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        log_probs = other_model(0).expand(20, -1)
        guided = [sample_next(product, product.begin(20), log_probs, 1.0, seeded(n)) for n in range(6)]
        read = product.read(product.begin(2), torch.tensor([0, 2]))
        product.side_by_side = True
        torch.testing.assert_close(product.before(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])), before)
        assert [sample(product, product.begin(20), seeded(n)) for n in range(3)] == wanted
        for n, tokens in enumerate(guided):
            assert torch.equal(sample_next(product, product.begin(20), log_probs, 1.0, seeded(n)), tokens)
        for _ in range(4):
            torch.testing.assert_close(product.read(product.begin(2), torch.tensor([0, 2])), read)
        assert torch.cuda.is_available() or bool(product.graphs) == isinstance(product.moves, Dense)


def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained, "PATIENCE", 0)
    monkeypatch.setattr(constrained, "GRAPHS", 2)
    monkeypatch.setattr(constrained.replay, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(constrained.replay.Replay, "capture", capture)
    product = Product(small(2).chain, CONSTRAINT.compile(VOCAB), SENTENCES)
    product.side_by_side = True
    for batch in range(1, 6):
        product.read(product.begin(batch), torch.zeros(batch, dtype=torch.int64))
        assert 1 <= len(product.graphs) <= 2


@pytest.mark.parametrize(("length", "size"), [(1, 4), (10, 4), (12, 4), (1000, 16), (7, 256)])
def test_inversion_by_blocks(length: int, size: int) -> None:
    generator = seeded(length)
    weights = torch.rand(50, length, generator=generator, dtype=torch.float64)
    weights *= torch.rand(50, length, generator=generator, dtype=torch.float64) < 0.5
    weights[0] = 0.0
    uniform = torch.rand(50, 7, generator=generator, dtype=torch.float64)
    uniform[:, 0], uniform[:, 1] = 0.0, 1 - 1e-16
    found = invert_by_blocks(weights, uniform, size)
    for n in range(7):
        assert torch.equal(found[:, n], invert(weights, uniform[:, n]))
    positive = weights.sum(-1) > 0
    assert (weights.gather(-1, found)[positive] > 0).all()


def test_only_the_empty_sentence() -> None:
    """The automaton has no edges."""
    product = Product(small(2).chain, one_of([""]).compile(VOCAB), SENTENCES)
    wanted = product.log_prob(product.begin(2))
    product.side_by_side = True
    assert torch.equal(product.log_prob(product.begin(2)), wanted)
    assert sample(product, product.begin(2), seeded(0)) == [[], []]
