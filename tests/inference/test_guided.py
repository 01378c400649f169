"""Guided samples against the weights of all tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_constrained import KINDS, SENTENCES, STREAM, VOCAB, WORDS, small
from torch import Tensor

from trellis.constraints import anything, banned, contains
from trellis.inference import guided
from trellis.inference.constrained import Position, Product
from trellis.inference.prefixes import Prefix, Prefixes
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import distributions, seeded

EXACT = 1e-10
DRAWS = 4000
CONSTRAINT = contains("a b") | banned("c")


def at(product: Product, prefix: tuple[int, ...], number: int = 1) -> Position:
    return Prefixes(product).positions([Prefix(prefix)] * number)


def other_model(seed: int) -> Tensor:
    """log p(next token), with a token of probability zero."""
    return distributions(seeded(seed), 1, WORDS + 1, zeros=0.3).log()


@pytest.mark.parametrize(("moves", "emits"), KINDS)
@pytest.mark.parametrize("prefix", [(), (2,), (0, 1)])
def test_corrections_of_some_tokens_and_their_bounds(prefix: tuple[int, ...], moves: str, emits: str) -> None:
    for span in (SENTENCES, STREAM):
        product = Product(small(1, moves, emits).chain, CONSTRAINT.compile(VOCAB), span)
        position, tokens = at(product, prefix), torch.tensor([[3, 0, 2, 1, 0]])
        expected = product.corrections(position).gather(-1, tokens)
        np.testing.assert_allclose(product.corrections_of(position, tokens).exp(), expected.exp(), rtol=EXACT)
        assert (product.largest_corrections(position).gather(-1, tokens) >= expected - EXACT).all()


@pytest.mark.parametrize("rounds", [(), (1,), (2, 3), guided.ROUNDS])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_samples(rounds: tuple[int, ...], alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many proposals are allowed, the samples have the weights p(x) c(x)^alpha."""
    monkeypatch.setattr(guided, "ROUNDS", rounds)
    for number, prefix in enumerate([(), (0,), (2,)]):
        product, log_probs = Product(small(4).chain, CONSTRAINT.compile(VOCAB), SENTENCES), other_model(number)
        position = at(product, prefix, DRAWS)
        weights = guided.weighted(log_probs, product.corrections(position)[:1], alpha)[0].exp()
        drawn = guided.sample_next(product, position, log_probs.expand(DRAWS, -1), alpha, seeded(number))
        assert chi_square(drawn.numpy(), (weights / weights.sum()).numpy()) > SMALLEST_P


def test_no_possible_token() -> None:
    """The guided model allows only b, after which the constraint cannot be satisfied."""
    product = Product(small(4).chain, banned("b").compile(VOCAB), SENTENCES)
    log_probs = torch.tensor([[-torch.inf, 0.0, -torch.inf, -torch.inf], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    drawn = guided.sample_next(product, at(product, (), 2), log_probs.double(), 1.0, seeded(0))
    assert drawn.tolist() == [-1, 0]


def test_a_state_from_which_everything_is_accepted() -> None:
    """In a stream, its messages are one and its corrections zero, without a product."""
    product = Product(small(5).chain, contains("a").compile(VOCAB), STREAM)
    rows = product.lattice.sure
    assert rows.tolist() == [int(product.lattice.place[t, 1]) for t in (1, 2, 3)]
    assert (product.messages.values[rows] == 1).all()
    assert (product.corrections(at(product, (0,))) == 0).all()
    assert (product.corrections(at(product, (0,) * (STREAM.most - 1))) == 0).all()
    assert (product.corrections(at(product, (0,) * STREAM.most)) == -torch.inf).all()  # there is no further token
    assert not Product(small(5).chain, anything().compile(VOCAB), SENTENCES).lattice.certain.any()


def test_no_possible_token_that_only_its_exact_weight_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on the correction of the only token is above zero, the correction itself is zero."""
    monkeypatch.setattr(guided, "ROUNDS", (2,))
    product = Product(small(4).chain, CONSTRAINT.compile(VOCAB), SENTENCES)
    monkeypatch.setattr(product, "largest_corrections", lambda position: torch.zeros(1, WORDS + 1))
    monkeypatch.setattr(product, "corrections", lambda position: torch.full((1, WORDS + 1), -torch.inf))
    monkeypatch.setattr(product, "corrections_of", lambda position, tokens: torch.full((1, 2), -torch.inf))
    log_probs = torch.full((1, WORDS + 1), -torch.inf)
    log_probs[:, 0] = 0.0
    assert guided.sample_next(product, at(product, ()), log_probs, 1.0, seeded(0)).tolist() == [-1]
