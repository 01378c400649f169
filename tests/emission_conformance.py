"""What every emission must do: inherit the suite, say how to build one, and be checked against enumeration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import seeded
from oracle import SMALLEST_P, chi_square
from strategies import assert_close
from trellis.emissions import Emission, SymbolEmission, Vectors

BATCH, STEPS, DRAWS, STEP = 3, 5, 4000, 1e-3


class EmissionConformance(ABC):
    """Checks of an `Emission` through its interface alone."""

    prior: Any = 0.0  # that adds nothing

    @abstractmethod
    def build(self) -> Any:
        """An emission in float64."""

    @abstractmethod
    def observe(self, emission: Any) -> Any:
        """BATCH sequences of STEPS observations, some of them missing."""

    @pytest.fixture
    def emission(self) -> Any:
        return self.build()

    @pytest.fixture
    def observations(self, emission: Any) -> Any:
        return self.observe(emission)

    def log_probs(self, emission: Emission, observations: Any) -> Tensor:
        """log p(x_t | z), zero where missing: [B, T, K]."""
        return emission.potentials(observations).widen(emission.num_states).gather()

    def visits(self, emission: Emission, observations: Any) -> Tensor:
        """Random expected visits of the rows of the potentials, none of a row that was not observed: [N, k]."""
        table, rows, *_ = emission.potentials(observations)
        seen = torch.zeros(len(table), 1, dtype=torch.float64).index_fill(0, rows[rows >= 0], 1.0)
        return torch.rand(table.shape, generator=seeded(4), dtype=torch.float64) * seen * (table > -torch.inf)

    def test_missing_observations_say_nothing(self, emission: Emission, observations: Any) -> None:
        rows = observations.rows if isinstance(observations, Vectors) else observations
        missing = self.log_probs(emission, observations)[rows < 0]
        assert len(missing) > 0
        assert (missing == 0).all()

    def test_statistics_add_and_scale(self, emission: Emission, observations: Any) -> None:
        visits = self.visits(emission, observations)
        one = emission.statistics(observations, visits)
        assert_close(emission.statistics(observations, 3 * visits), one + 2 * one)

    def test_the_m_step_maximises_the_expected_log_likelihood(self, emission: Emission, observations: Any) -> None:
        """No other emission that the M-step could give from other visits explains these visits better."""
        visits = self.visits(emission, observations)
        best = emission.maximised(emission.statistics(observations, visits), self.prior)
        top = self.explained(best, observations, visits)
        assert top >= self.explained(emission, observations, visits)
        for seed in range(5):
            noise = torch.rand(visits.shape, generator=seeded(seed), dtype=torch.float64) * (visits > 0)
            other = emission.maximised(emission.statistics(observations, visits + STEP * noise), self.prior)
            assert top >= self.explained(other, observations, visits) - STEP**2

    def explained(self, emission: Emission, observations: Any, visits: Tensor) -> float:
        """sum of visits log p(x | z)."""
        table = emission.potentials(observations).table
        return float((visits * table.masked_fill(visits == 0, 0.0)).sum())

    def test_samples_repeat_and_have_one_observation_for_each_state(self, emission: Emission) -> None:
        states = torch.arange(emission.num_states).repeat(2).view(2, -1)
        one, same = (emission.sample(states, seeded(5)) for _ in range(2))
        assert one.equal(same)
        assert one.shape[:2] == states.shape


class SymbolConformance(EmissionConformance):
    """Checks of a `SymbolEmission`, whose symbols can be enumerated."""

    def observe(self, emission: SymbolEmission) -> Tensor:
        symbols = torch.randint(emission.num_symbols, (BATCH, STEPS), generator=seeded(3))
        symbols[0, 1] = symbols[2, 4] = -1
        return symbols

    def test_probabilities_sum_to_one(self, emission: SymbolEmission) -> None:
        assert emission.dense().shape == (emission.num_symbols, emission.num_states)
        assert_close(emission.dense().exp().sum(0), torch.ones(emission.num_states))

    def test_potentials_are_those_of_the_table(self, emission: SymbolEmission, observations: Tensor) -> None:
        expected = emission.dense()[observations.clamp(min=0)].masked_fill((observations < 0).unsqueeze(-1), 0.0)
        assert_close(self.log_probs(emission, observations), expected)
        for symbol in range(emission.num_symbols):
            assert_close(emission.log_probs(symbol), emission.dense()[symbol])

    def test_predictions(self, emission: SymbolEmission) -> None:
        probs = torch.rand(2, emission.num_states, generator=seeded(6), dtype=torch.float64)
        assert_close(emission.predict(probs), (probs @ emission.dense().exp().T).log())

    def test_states_a_few_at_a_time(self, emission: SymbolEmission) -> None:
        assert_close(torch.cat(list(emission.by_state()), 1), emission.dense())
        states = torch.arange(emission.num_states).flip(0)[:2]
        assert_close(emission.columns(states), emission.dense()[:, states])
        values, symbols = emission.best()
        assert_close(values, emission.dense().amax(0))
        assert_close(emission.dense().gather(0, symbols[None])[0], values)
        assert_close(emission.log_totals(), torch.zeros(emission.num_states))

    def test_draws(self, emission: SymbolEmission) -> None:
        for state in range(emission.num_states):
            drawn = emission.sample(torch.full((DRAWS,), state), seeded(state)).numpy()
            assert chi_square(drawn, emission.dense()[:, state].exp().numpy()) > SMALLEST_P


class VectorConformance(EmissionConformance):
    """Checks of an emission of rows of numbers."""

    def observe(self, emission: Any) -> Vectors:
        values = emission.sample(torch.arange(emission.num_states).repeat(6), seeded(7)).double()
        rows = torch.arange(BATCH * STEPS).view(BATCH, STEPS) % len(values)
        rows[0, 1] = rows[2, 4] = -1
        return Vectors(values, rows)

    def test_draws_have_the_mean_of_the_m_step(self, emission: Any) -> None:
        """Many draws from one state make an emission that explains them no worse than the true one, but for chance."""
        drawn = emission.sample(torch.arange(emission.num_states).repeat(DRAWS // 10), seeded(8)).double()
        observations = Vectors(drawn, torch.arange(len(drawn))[None])
        visits = torch.eye(emission.num_states).double().repeat(DRAWS // 10, 1)
        found = emission.maximised(emission.statistics(observations, visits), self.prior)
        gain = self.explained(found, observations, visits) - self.explained(emission, observations, visits)
        assert 0 <= gain < np.sqrt(DRAWS)
