"""The table of parameters: normalisation, supports, setting, and the M-step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.hmm.parameters import TableParams
from trellis.inference import discrete
from trellis.parts import Prior
from trellis.testing.close import assert_close
from trellis.testing.problems import distributions
from trellis.types import Belief, Counts

STATES, WORDS = 5, 6
# State 0 belongs to every word, state 4 to none.
SUPPORT = torch.tensor([[0, 1], [2, 0], [0, 3], [1, 0], [0, 2], [3, 0]])
EITHER = pytest.mark.parametrize("support", [None, SUPPORT], ids=["full", "support"])


def make(support: Tensor | None, seed: int = 0) -> TableParams:
    return TableParams(STATES, WORDS, support, seed=seed).double()


def text(seed: int = 0, batch: int = 6, steps: int = 8) -> Tensor:
    return torch.randint(WORDS, (batch, steps), generator=torch.Generator().manual_seed(seed))


def problem_of(params: TableParams, tokens: Tensor) -> tuple:
    prior = Belief(params.parts().start.expand(len(tokens), -1))
    return prior, params.parts().transition, params.parts().emission.potentials(tokens)


def random_counts(support: Tensor | None) -> Counts:
    generator = torch.Generator().manual_seed(1)
    live = STATES if support is None else support.shape[1]
    sizes = ((), (STATES,), (STATES, STATES), (WORDS, live))
    return Counts(*(torch.rand(size, generator=generator, dtype=torch.float64) for size in sizes))


@EITHER
def test_probabilities_sum_to_one(support: Tensor | None) -> None:
    params = make(support)
    assert_close(params.parts().start.sum(), torch.ones(()))
    assert_close(params.parts().transition.dense().sum(-1), torch.ones(STATES))
    words = torch.ones(STATES) if support is None else torch.tensor([1.0, 1, 1, 1, 0])
    assert_close(params.parts().emission.dense().exp().sum(0), words)


def test_a_support_normalises_over_a_states_own_words() -> None:
    params = make(SUPPORT)
    expected = torch.full((WORDS, STATES), -torch.inf, dtype=torch.float64).scatter(1, SUPPORT, params.emission_logits)
    assert_close(params.parts().emission.dense()[:, :4], expected[:, :4].log_softmax(0))


@pytest.mark.parametrize("size", [0.0, 1000.0])
def test_extreme_logits_do_not_overflow(size: float) -> None:
    params = make(SUPPORT)
    with torch.no_grad():
        params.emission_logits.mul_(size).add_(size)
    table = params.parts().emission.table
    assert table.isfinite().all()
    assert_close(params.parts().emission.dense()[:, :4].logsumexp(0), torch.zeros(4))


def test_a_seed_says_everything() -> None:
    one, same, other = make(None, 1), make(None, 1), make(None, 2)
    assert one.transition_logits.equal(same.transition_logits)
    assert not one.transition_logits.equal(other.transition_logits)


@EITHER
def test_gradients(support: Tensor | None) -> None:
    params, tokens = make(support), text(batch=2, steps=3)
    names = list(dict(params.named_parameters()))

    def score(*values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(Scored(params), {f"params.{k}": v for k, v in given.items()}, (tokens,))

    assert torch.autograd.gradcheck(score, tuple(p.detach().requires_grad_() for p in params.parameters()))


class Scored(torch.nn.Module):
    """log p of sentences as a module, so that its parameters can be varied."""

    def __init__(self, params: TableParams) -> None:
        super().__init__()
        self.params = params

    def forward(self, tokens: Tensor) -> Tensor:
        return discrete.log_likelihood(*problem_of(self.params, tokens))


@EITHER
def test_a_state_without_words_has_no_gradient_that_is_not_a_number(support: Tensor | None) -> None:
    params = make(support)
    discrete.log_likelihood(*problem_of(params, text())).sum().backward()
    assert all(p.grad.isfinite().all() for p in params.parameters())


@EITHER
def test_set_probabilities(support: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(3)
    start, transition = (distributions(generator, *size, zeros=0.3) for size in ((STATES,), (STATES, STATES)))
    emission = distributions(generator, STATES, WORDS, zeros=0.3)
    if support is not None:
        allowed = torch.zeros(WORDS, STATES, dtype=torch.float64).scatter(1, support, 1.0).T
        allowed[4] = 1.0  # its words are not in the table, whatever they are
        emission = (emission + 0.1) * allowed
        emission = emission / emission.sum(-1, keepdim=True)
    params = make(support)
    params.set_probabilities(start, transition, emission)
    assert_close(params.parts().start, start)
    assert_close(params.parts().transition.dense(), transition)
    assert_close(params.parts().emission.dense().exp()[:, :4], emission.T[:, :4])


def test_set_probabilities_refuses_what_does_not_sum_to_one() -> None:
    with pytest.raises(TrellisError, match="transition probabilities do not sum to one"):
        make(None).set_probabilities(
            torch.full((STATES,), 1 / STATES), torch.ones(STATES, STATES), torch.full((STATES, WORDS), 1 / WORDS)
        )


@EITHER
@pytest.mark.parametrize("pseudocount", [0.0, 0.5])
def test_maximise_is_proportional_to_counts(support: Tensor | None, pseudocount: float) -> None:
    params, counts = make(support), random_counts(support)
    params.maximise(counts, Prior.same(pseudocount))
    start, moves, visits = (c + pseudocount for c in counts[1:])
    assert_close(params.parts().start, start / start.sum())
    assert_close(params.parts().transition.dense(), moves / moves.sum(-1, keepdim=True))
    full = visits if support is None else torch.zeros(WORDS, STATES).double().scatter(1, support, visits)
    assert_close(params.parts().emission.dense().exp(), full / full.sum(0).clamp(min=1e-30))


@EITHER
def test_a_state_never_visited_keeps_what_it_had(support: Tensor | None) -> None:
    params, counts = make(support), random_counts(support)
    before_moves, before_words = params.parts().transition.dense().detach(), params.parts().emission.dense().detach()
    counts.transition[2] = 0
    counts.emission[torch.full_like(counts.emission, 2) == (torch.arange(STATES) if support is None else support)] = 0
    params.maximise(counts, Prior())
    assert_close(params.parts().transition.dense()[2], before_moves[2])
    assert_close(params.parts().emission.dense()[:, 2], before_words[:, 2])
    assert not torch.allclose(params.parts().transition.dense()[1], before_moves[1])


@EITHER
def test_zero_counts_are_zero_probabilities(support: Tensor | None) -> None:
    params, counts = make(support), random_counts(support)
    counts.start[1] = counts.transition[0, 3] = 0
    counts.emission[0] = 0
    params.maximise(counts, Prior())
    assert params.parts().start[1] == 0
    assert params.parts().transition.dense()[0, 3] == 0
    assert (params.parts().emission.table[0] == -torch.inf).all()
    tokens = torch.tensor([[1, 0, 1], [1, 2, 3]])
    total = discrete.log_likelihood(*problem_of(params, tokens))
    assert total[0] == -torch.inf
    assert total[1].isfinite()
    total[1].backward()
    assert all(p.grad.isfinite().all() for p in params.parameters())


@EITHER
def test_every_iteration_of_em_raises_the_likelihood(support: Tensor | None) -> None:
    params, tokens = make(support), text(4)
    tokens[torch.rand(tokens.shape, generator=torch.Generator().manual_seed(5)) < 0.1] = -1
    history = []
    for _ in range(10):
        counts, _ = discrete.counts(*problem_of(params, tokens))
        history.append(counts.log_likelihood)
        params.maximise(counts, Prior())
    assert (torch.stack(history).diff() > 0).all()


def test_em_with_a_support_is_em_with_zeros() -> None:
    """The masked dense HMM, started from the same probabilities, goes the same way."""
    sparse, full, tokens = make(SUPPORT), make(None), text(6)
    emission = sparse.parts().emission.dense().exp().T.detach()
    emission[4] = 1 / WORDS
    full.set_probabilities(sparse.parts().start, sparse.parts().transition.dense(), emission)
    with torch.no_grad():
        full.start_logits[4] = full.transition_logits[:, 4] = -1e30
        sparse.start_logits[4] = sparse.transition_logits[:, 4] = -1e30
    for _ in range(4):
        for params in (sparse, full):
            params.maximise(discrete.counts(*problem_of(params, tokens))[0], Prior())
    assert_close(sparse.parts().start, full.parts().start)
    assert_close(sparse.parts().transition.dense(), full.parts().transition.dense())
    assert_close(sparse.parts().emission.dense()[:, :4], full.parts().emission.dense()[:, :4])


def test_expected_words_are_the_frequencies_when_there_is_one_state() -> None:
    params, tokens = TableParams(1, WORDS).double(), text(7)
    params.maximise(discrete.counts(*problem_of(params, tokens))[0], Prior())
    frequency = torch.bincount(tokens.flatten(), minlength=WORDS).double() / tokens.numel()
    assert_close(params.parts().emission.table[:, 0], frequency.log())
