"""Long sequences: scaled arithmetic neither underflows nor drifts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from trellis import engines
from trellis.inference import discrete
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, distributions, random_problem, transition_of
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

LONG = 1_000_000
SINGLE_PRECISION = 1e-5  # relative difference of float32 from float64 in log p(x)
POSTERIOR = 1e-5  # absolute difference of float32 from float64 in p(z_t | x)
COUNTING = 1e-6  # relative difference of float32 from the truth in a million added up
CELLS = 1e-4  # and in any single expected count
SUMMING = 1e-12  # relative difference between two orders of a float64 sum


def in_dtype(problem: Problem, dtype: torch.dtype) -> Problem:
    """The same numbers in another precision."""
    return Problem(
        Belief(problem.prior.probs.to(dtype)),
        transition_of(problem.transition.matrix.to(dtype)),
        problem.potentials._replace(table=problem.potentials.table.to(dtype)),
        problem.lengths,
    )


@pytest.fixture(scope="module")
def million() -> Problem:
    """One sequence of a million words, with some missing."""
    return random_problem(1, 1, LONG, 4, symbols=50, missing=0.01, shortest=LONG)


def test_a_million_words_in_single_precision(million: Problem) -> None:
    exact = discrete.log_likelihood(*million).item()
    single = discrete.log_likelihood(*in_dtype(million, torch.float32)).item()
    assert np.isfinite(exact)
    assert exact < -LONG
    assert abs(single - exact) <= SINGLE_PRECISION * abs(exact)


@pytest.mark.parametrize("batch", [1, 20])
def test_tokens_in_single_precision_are_summed_in_double(batch: int) -> None:
    problem = random_problem(6, batch, 5000, 4, symbols=50, shortest=1000, dtype=torch.float32)
    expected = discrete.score(*problem)[0].double().sum(1)
    for found in (
        discrete.log_likelihood(*problem),
        discrete.smooth(*problem).log_likelihood,
        discrete.counts(*problem, per_sequence=True)[0].log_likelihood,
    ):
        torch.testing.assert_close(found, expected, rtol=SUMMING, atol=0)


def test_posteriors_of_a_million_words(million: Problem) -> None:
    posterior = discrete.smooth(*in_dtype(million, torch.float32))
    assert_close(posterior.probs.sum(-1), torch.ones(1, LONG), tolerance=POSTERIOR)
    assert (posterior.probs >= 0).all()
    window = slice(LONG // 2, LONG // 2 + 100)
    assert_close(posterior.probs[:, window], discrete.smooth(*million).probs[:, window], tolerance=POSTERIOR)


def test_counts_of_a_million_words(million: Problem) -> None:
    result, belief = discrete.counts(*in_dtype(million, torch.float32))
    seen = int((million.potentials.rows >= 0).sum())
    assert result.transition.sum().item() == pytest.approx(LONG - 1, rel=COUNTING)
    assert result.emission.sum().item() == pytest.approx(seen, rel=COUNTING)
    assert_close(belief.probs.sum(-1), torch.ones(1))
    exact, _ = discrete.counts(*million)
    torch.testing.assert_close(result.transition.double(), exact.transition, rtol=CELLS, atol=0)
    torch.testing.assert_close(result.emission.double(), exact.emission, rtol=CELLS, atol=0)


def test_best_path_and_sample_of_a_million_words(million: Problem) -> None:
    path, score = discrete.viterbi(*million)
    drawn = discrete.sample_posterior(*million, torch.Generator().manual_seed(0))
    for states in (path, drawn):
        assert ((states >= 0) & (states < 4)).all()
    observed = million.potentials.gather()[0].gather(-1, path[0, :, None]).sum()
    moves = million.transition.matrix[path[0, :-1], path[0, 1:]].log().sum()
    assert score.item() == pytest.approx(
        (million.prior.probs[0, path[0, 0]].log() + moves + observed).item(), rel=1e-10
    )
    assert score.item() < discrete.log_likelihood(*million).item()


@pytest.mark.parametrize("batch", [1, 20])
def test_against_log_space(batch: int) -> None:
    """The forward pass written with logsumexp, over words whose potentials lie hundreds of nats apart."""
    steps, states = 2000, 3
    generator = torch.Generator().manual_seed(2)
    problem = random_problem(2, batch, steps, states, symbols=5, shortest=steps)
    shift = 300.0 * torch.randn(5, 1, generator=generator, dtype=torch.float64)
    problem = problem._replace(potentials=problem.potentials._replace(table=problem.potentials.table + shift))
    log_matrix, log_weights = problem.transition.matrix.log().numpy(), problem.potentials.gather().numpy()
    alpha = problem.prior.probs.log().numpy() + log_weights[:, 0]
    for t in range(1, steps):
        alpha = logsumexp(alpha[:, :, None] + log_matrix, axis=1) + log_weights[:, t]
    expected = logsumexp(alpha, axis=1)
    np.testing.assert_allclose(discrete.log_likelihood(*problem).numpy(), expected, rtol=1e-10)
    single = discrete.log_likelihood(*in_dtype(problem, torch.float32)).numpy()
    np.testing.assert_allclose(single, expected, rtol=SINGLE_PRECISION)


def test_the_reference_is_as_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3, 2, 2000, 5, symbols=50, shortest=2000)
    exact = discrete.log_likelihood(*problem)
    monkeypatch.setattr(engines, "optional_engine", lambda name: None)
    np.testing.assert_allclose(discrete.log_likelihood(*problem), exact, rtol=1e-12)
    single = discrete.log_likelihood(*in_dtype(problem, torch.float32))
    np.testing.assert_allclose(single, exact, rtol=SINGLE_PRECISION)


def test_near_certain_chains_do_not_drift() -> None:
    """States that change once in a million steps: posteriors stay distributions over a long text."""
    steps, stay = 100_000, 1 - 1e-6
    matrix = torch.tensor([[stay, 1 - stay], [1 - stay, stay]])
    table = distributions(torch.Generator().manual_seed(4), 2, 6).float().T.log().contiguous()
    rows = torch.randint(6, (1, steps), generator=torch.Generator().manual_seed(5))
    problem = Problem(Belief(torch.full((1, 2), 0.5)), Dense(matrix), Potentials(table, rows), torch.tensor([steps]))
    single = discrete.smooth(*problem).probs
    assert_close(single.sum(-1), torch.ones(1, steps), tolerance=1e-3)
    exact = discrete.smooth(*in_dtype(problem, torch.float64)).probs
    assert_close(single.double(), exact, tolerance=1e-2)
