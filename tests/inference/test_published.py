"""The peer of the benchmark of very large HMMs, against exact inference over all kept states."""

from __future__ import annotations

import pytest
import torch

from benchmarks import published
from trellis import engines
from trellis.inference import discrete
from trellis.transitions import Blocks, Dense
from trellis.types import Belief, Potentials

BFLOAT16 = 0.02  # relative error of a log-likelihood


@pytest.mark.parametrize("steps", [1, 5])
def test_the_likelihood(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = []
    monkeypatch.setattr(published, "score", lambda *chain: chains.append(chain[1]) or engines.score(*chain))
    generator = torch.Generator().manual_seed(0)
    word_class, kept = torch.tensor([0, 1, 2, 1, 0, 2, 1]), torch.tensor([[0, 2], [4, 5], [6, 8]])
    model = published.Published(word_class, 3, 3, 16, compiled=False)
    model.embedding.data.mul_(10)
    tokens = torch.randint(7, (4, steps), generator=generator)
    found = model(tokens, kept)
    found.backward()
    assert model.embedding.grad is not None
    assert bool((model.embedding.grad[kept.flatten()].abs().sum(1) > 0).all())
    with torch.no_grad():
        vectors = model.embedding[kept.flatten()].bfloat16()
        matrix = published.log_transition(model.move(vectors), vectors).double().exp()
        state_class = torch.arange(3).repeat_interleave(2)
        table = published.log_emission(model.say(vectors), model.words.bfloat16(), word_class, state_class).T.double()
        prior = Belief(torch.full((4, 6), 1 / 6, dtype=torch.float64))
        exact = discrete.log_likelihood(prior, Dense(matrix), Potentials(table, tokens)).sum()
    assert isinstance(chains[0], Blocks)  # one matrix per step: other engines on a GPU than for a constant one
    assert float(found.detach()) == pytest.approx(float(exact), rel=BFLOAT16)
