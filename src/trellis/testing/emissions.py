"""Checks of emissions, through their interface."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.emissions import Emission, SymbolEmission, Vectors
from trellis.learning.em import expect
from trellis.parts import Parts, Prior
from trellis.testing.close import Check, assert_close, require, run_checks
from trellis.testing.oracle import SMALLEST_P, Paths, chi_square
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense

BATCH, STEPS, LONG, DRAWS, STEP = 3, 5, 40, 4000, 1e-3
FALL = 1e-9  # nats that may be lost to rounding


def check_emission(emission: Emission, prior: Any = 0.0, observations: Any = None) -> None:
    """Check the probabilities, statistics, M-step and samples of an emission.

    Parameters
    ----------
    emission
        An emission in float64 with 2 to 5 states.
    prior : float or tuple
        The prior that has no effect on the M-step; for symbols, a pseudocount of zero.
    observations : Tensor or Vectors
        3 sequences of 5 observations, some of them missing. By default, a `SymbolEmission` is checked with random
        symbols, and any other emission with `Vectors` that are sampled from it.

    Examples
    --------
    >>> import torch
    >>> from trellis.emissions import Categorical
    >>> from trellis.testing import check_emission
    >>> check_emission(Categorical(torch.randn(4, 3, dtype=torch.float64).log_softmax(0), None, 3))
    """
    symbols = observations is None and isinstance(emission, SymbolEmission)
    if observations is None:
        observations = some_symbols(emission) if isinstance(emission, SymbolEmission) else some_vectors(emission)
    vectors = isinstance(observations, Vectors)
    run_checks(
        type(emission).__name__, Case(emission, prior, observations), CHECKS + SYMBOLS * symbols + VECTORS * vectors
    )


def some_symbols(emission: SymbolEmission) -> Tensor:
    symbols = torch.randint(emission.num_symbols, (BATCH, STEPS), generator=seeded(3))
    symbols[0, 1] = symbols[2, 4] = -1
    return symbols


def some_vectors(emission: Emission) -> Vectors:
    values = emission.sample(torch.arange(emission.num_states).repeat(6), seeded(7)).double()
    rows = torch.arange(BATCH * STEPS).view(BATCH, STEPS) % len(values)
    rows[0, 1] = rows[2, 4] = -1
    return Vectors(values, rows)


class Case:
    """An emission and the observations to check it with."""

    def __init__(self, emission: Any, prior: Any, observations: Any) -> None:
        self.emission, self.prior, self.observations = emission, prior, observations
        self.states = emission.num_states

    @property
    def log_probs(self) -> Tensor:
        """The log-probability of each observation in each state, zero if the observation is missing: [B, T, K]."""
        return self.emission.potentials(self.observations).widen(self.states).gather()

    @property
    def visits(self) -> Tensor:
        """Random expected visits of each row and state of the potentials [N, k], zero for rows that do not occur."""
        table, rows, *_ = self.emission.potentials(self.observations)
        seen = torch.zeros(len(table), 1, dtype=torch.float64).index_fill(0, rows[rows >= 0], 1.0)
        return torch.rand(table.shape, generator=seeded(4), dtype=torch.float64) * seen * (table > -torch.inf)

    def maximised(self, visits: Tensor, observations: Any = None) -> Any:
        observations = self.observations if observations is None else observations
        return self.emission.maximised(self.emission.statistics(observations, visits), self.prior)

    def explained(self, emission: Emission, visits: Tensor, observations: Any = None) -> float:
        """The expected log-likelihood: the sum of visits * log p(observation | state)."""
        table = emission.potentials(self.observations if observations is None else observations).table
        return float((visits * table.masked_fill(visits == 0, 0.0)).sum())

    @property
    def missing(self) -> Tensor:
        given = self.observations
        return (given.rows if isinstance(given, Vectors) else given) < 0

    def text(self) -> Any:
        """Enough observations to re-estimate every state."""
        if not isinstance(self.observations, Vectors):
            return self.observations
        drawn = self.emission.sample(torch.arange(self.states).repeat(LONG), seeded(9)).double()
        return Vectors(drawn, torch.arange(len(drawn)).view(LONG, self.states))

    def parts(self) -> Parts:
        start, matrix = distributions(seeded(1), self.states), distributions(seeded(2), self.states, self.states)
        return Parts(start, Dense(matrix), self.emission)


def shape(case: Case) -> None:
    """`potentials` has log-probabilities of every observation in every state. For each observation, at least one is
    finite."""
    found = case.log_probs
    require(found.shape == (*case.missing.shape, case.states), f"their shape is {tuple(found.shape)}")
    require((found > -torch.inf).any(-1).all(), "an observation is impossible in every state")
    require(not found.isnan().any(), "there is a NaN")


def missing_observations(case: Case) -> None:
    """Missing observations have probability one in every state."""
    require(case.missing.any(), "none of the given observations is missing")
    require((case.log_probs[case.missing] == 0).all(), "the log-probability of a missing observation is not zero")


def statistics_add(case: Case) -> None:
    """Statistics can be added and scaled."""
    one = case.emission.statistics(case.observations, case.visits)
    assert_close(case.emission.statistics(case.observations, 3 * case.visits), one + 2 * one)


def m_step(case: Case) -> None:
    """The M-step maximises the expected log-likelihood: M-steps for other visits give a lower one."""
    best = case.maximised(case.visits)
    top = case.explained(best, case.visits)
    require(top >= case.explained(case.emission, case.visits), "it was higher before the M-step")
    for seed in range(5):
        noise = torch.rand(case.visits.shape, generator=seeded(seed), dtype=torch.float64) * (case.visits > 0)
        other = case.explained(case.maximised(case.visits + STEP * noise), case.visits)
        require(top >= other - STEP**2, f"{other} instead of {top} nats by the M-step of other visits")


def em(case: Case) -> None:
    """EM never lowers the likelihood, and raises it."""
    parts, observations, history = case.parts(), case.text(), []
    rows = observations.rows if isinstance(observations, Vectors) else observations
    lengths = torch.full((len(rows),), rows.shape[1])
    lengths[0] -= 2
    for _ in range(6):
        counts, _ = expect(parts, observations, lengths)
        history.append(float(counts.log_likelihood))
        parts = parts.maximised(counts, Prior(emission=case.prior))
    require((np.diff(history) > -FALL).all(), f"log-likelihoods {history}")
    require(history[-1] > history[0], "nothing was learned")


def enumeration(case: Case) -> None:
    """The likelihood of sequences agrees with an enumeration of all paths."""
    parts, weights = case.parts(), case.log_probs.exp().detach().numpy()
    counts, _ = expect(parts, case.observations, torch.full((BATCH,), STEPS))
    matrices = parts.transition.dense().expand(STEPS - 1, -1, -1).numpy()
    total = sum(np.log(Paths(parts.start.numpy(), matrices, each).likelihood) for each in weights)
    assert_close(counts.log_likelihood, np.array(total))


def draws_repeat(case: Case) -> None:
    """`sample` returns one observation per state, and the same ones for the same seed."""
    states = torch.arange(case.states).repeat(2).view(2, -1)
    one, same = (case.emission.sample(states, seeded(5)) for _ in range(2))
    require(one.equal(same), "two samples with the same seed differ")
    require(one.shape[:2] == states.shape, f"the shape of the samples is {tuple(one.shape)}")


def sums_to_one(case: Case) -> None:
    """The probabilities of all symbols sum to one in every state."""
    dense = case.emission.dense()
    require(dense.shape == (case.emission.num_symbols, case.states), f"the shape of `dense` is {tuple(dense.shape)}")
    assert_close(dense.exp().sum(0), torch.ones(case.states))


def potentials_of_table(case: Case) -> None:
    """`potentials` and `log_probs` agree with `dense`."""
    dense, symbols = case.emission.dense(), case.observations
    wanted = dense[symbols.clamp(min=0)].masked_fill((symbols < 0).unsqueeze(-1), 0.0)
    assert_close(case.log_probs, wanted)
    for symbol in range(case.emission.num_symbols):
        assert_close(case.emission.log_probs(symbol), dense[symbol])


def predictions(case: Case) -> None:
    """`predict` returns the mixture of the states' distributions."""
    probs = torch.rand(2, case.states, generator=seeded(6), dtype=torch.float64)
    assert_close(case.emission.predict(probs), (probs @ case.emission.dense().exp().T).log())


def by_state(case: Case) -> None:
    """`by_state`, `columns`, `best` and `log_totals` agree with `dense`."""
    emission, dense = case.emission, case.emission.dense()
    assert_close(torch.cat(list(emission.by_state()), 1), dense)
    states = torch.arange(case.states).flip(0)[:2]
    assert_close(emission.columns(states), dense[:, states])
    values, symbols = emission.best()
    assert_close(values, dense.amax(0))
    assert_close(dense.gather(0, symbols[None])[0], values)
    assert_close(emission.log_totals(), torch.zeros(case.states))


def draws_of_symbols(case: Case) -> None:
    """Samples have the distribution of their state."""
    for state in range(case.states):
        drawn = case.emission.sample(torch.full((DRAWS,), state), seeded(state)).numpy()
        p = chi_square(drawn, case.emission.dense()[:, state].exp().detach().numpy())
        require(p > SMALLEST_P, f"chi-square test of the samples of state {state}: p = {p:.1e}")


def draws_of_vectors(case: Case) -> None:
    """An emission fitted to many samples has a slightly higher likelihood than the true one, as chance allows."""
    emission, each = case.emission, DRAWS // 10
    drawn = emission.sample(torch.arange(case.states).repeat(each), seeded(8)).double()
    observations = Vectors(drawn, torch.arange(len(drawn))[None])
    visits = torch.eye(case.states, dtype=torch.float64).repeat(each, 1)
    found = case.maximised(visits, observations)
    gain = case.explained(found, visits, observations) - case.explained(emission, visits, observations)
    require(0 <= gain < np.sqrt(DRAWS), f"the fitted one explains them {gain} nats better")


CHECKS: list[Check] = [
    shape, missing_observations, statistics_add, m_step, em, enumeration, draws_repeat,
]  # fmt: skip
SYMBOLS: list[Check] = [sums_to_one, potentials_of_table, predictions, by_state, draws_of_symbols]
VECTORS: list[Check] = [draws_of_vectors]
