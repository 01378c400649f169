"""Filtering one observation at a time, and forecasts."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from trellis.errors import InputError
from trellis.estimators.fitted import FittedHMM
from trellis.estimators.inference import problem
from trellis.estimators.inputs import Array
from trellis.inference import discrete
from trellis.transitions import Dense
from trellis.types import Belief


class FilterState(NamedTuple):
    """The result of `filter_step`: the state distribution after some observations.

    Parameters
    ----------
    probs
        p(z_t | x_1, ..., x_t), [K].
    log_prob
        log p(x_t | x_1, ..., x_{t-1}).
    log_likelihood
        log p(x_1, ..., x_t).
    steps
        The number t of observations.

    Examples
    --------
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit([0, 1, 0, 1, 1, 0])
    >>> state = model.filter_step(None, 0)
    >>> state = model.filter_step(state, 1)
    >>> state.steps, state.probs.shape
    (2, (2,))
    """

    probs: Array
    log_prob: float
    log_likelihood: float
    steps: int


@dataclass(frozen=True)
class Forecast:
    """The result of `forecast`: the distributions of states and observations 1, ..., h steps ahead.

    Parameters
    ----------
    states
        p(z_{t+i} | x_1, ..., x_t) for i = 1, ..., h: [h, K].
    model : estimator
        The estimator that forecasts.

    Examples
    --------
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit([0, 1, 0, 1, 1, 0])
    >>> ahead = model.forecast(3)
    >>> ahead.states.shape, ahead.probs.sum(1).round(6)
    ((3, 2), array([1., 1., 1.]))
    """

    states: Array
    model: Any

    @property
    def probs(self) -> Array:
        """The probability of each symbol, [h, V]."""
        if not hasattr(self.model, "emissionprob_"):
            raise InputError(f"{type(self.model).__name__} does not emit symbols; use mean, covariance or log_prob.")
        return self.states @ self.model.emissionprob_

    @property
    def mean(self) -> Array:
        """The expected observation, [h, F]."""
        return self.states @ self.model._moments()[0]

    @property
    def covariance(self) -> Array:
        """The covariance of the observation, [h, F, F]: the covariance within states plus the covariance of the
        states' means."""
        means, covars = self.model._moments()
        off = means - self.mean[:, None]  # [h, K, F]
        return np.einsum("hk,hkij->hij", self.states, covars + off[..., :, None] * off[..., None, :])

    def log_prob(self, X: Any) -> Array:
        """log p(x_{t+i} | x_1, ..., x_t) of the h observations X, for i = 1, ..., h: [h]."""
        observed = self.model._read(X, np.ones(len(self.states), np.int64))
        (block,) = self.model._blocks(observed)
        table = self.model._parts().emission.potentials(block.observations).gather()[:, 0].cpu().numpy()
        with np.errstate(divide="ignore"):
            return np.logaddexp.reduce(np.log(self.states) + table, axis=1)


class StreamingHMM(FittedHMM):
    """An estimator that filters observations as they arrive."""

    def filter(self, X: Any, lengths: Any = None) -> Array:
        """The filtered distribution p(z_t | x_1, ..., x_t) at every observation: [n_samples, n_components]."""
        observed, blocks = self._question(X, lengths)
        found = np.empty((len(observed.values), self.n_components))
        parts = self._scoring_parts()
        for block in blocks:
            block.restore(discrete.filter(*problem(parts, block)).probs.cpu().numpy(), found)
        return found

    def filter_step(self, state: FilterState | None, x: Any) -> FilterState:
        """The state distribution after one more observation. Pass `state=None` before the first observation.

        `x=None` is a missing observation: the distribution advances by one transition, and nothing is observed."""
        self._check_fitted()
        before = self._predicted(state)
        steps, log_likelihood = (0, 0.0) if state is None else (state.steps, state.log_likelihood)
        if x is None:
            return FilterState(before, 0.0, log_likelihood, steps + 1)
        (block,) = self._blocks(self._read([x] if np.ndim(x) == 0 else np.asarray(x)[None], None))
        _, transition, potentials, lengths = problem(self._parts(), block)
        found = discrete.filter(Belief(self._tensor(before)[None]), transition, potentials, lengths)
        log_prob = float(found.log_norms[0, 0])
        return FilterState(found.belief.probs[0].cpu().numpy(), log_prob, log_likelihood + log_prob, steps + 1)

    def forecast(self, h: int, state: FilterState | None = None) -> Forecast:
        """Forecast the h states and observations after `state`; None stands for the start of a sequence."""
        self._check_fitted()
        if h < 1:
            raise InputError(f"h is {h}: it must be at least 1.")
        transition, found = Dense(self._tensor(self.transmat_)), [self._tensor(self._predicted(state))[None]]
        for _ in range(h - 1):
            found.append(transition.forward(found[-1]))
        return Forecast(torch.cat(found).cpu().numpy(), self)

    def _moments(self) -> tuple[Array, Array]:
        """The means [K, F] and covariances [K, F, F] of the states' emissions."""
        raise InputError(f"{type(self).__name__} has no mean observation; use the probs or log_prob of the forecast.")

    def _predicted(self, state: FilterState | None) -> Array:
        """The state distribution of the next step, before its observation."""
        if state is None:
            return np.asarray(self.startprob_)
        if np.shape(state.probs) != (self.n_components,):
            raise InputError(f"The filter state has {len(state.probs)} states, but the model has {self.n_components}.")
        return state.probs @ np.asarray(self.transmat_)
