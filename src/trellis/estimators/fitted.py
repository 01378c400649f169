"""Queries of an HMM with given parameters: log-likelihood, Viterbi, posteriors, sampling."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from trellis.devices import choose_device
from trellis.emissions import Emission
from trellis.errors import InputError
from trellis.estimators.blocks import Block, make_blocks
from trellis.estimators.inputs import Array, Observations
from trellis.inference import discrete
from trellis.inference.stationary import long_run
from trellis.parts import Parts
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

Emitter = Callable[[int, np.random.RandomState], Any]
Problem = tuple[Belief, Dense, Potentials, Tensor]
SUM_TOLERANCE = 1e-5  # of probabilities set by hand
ALGORITHMS, IMPLEMENTATIONS = ("viterbi", "map"), ("log", "scaling")


@dataclass(repr=False, eq=False)
class FittedHMM(BaseEstimator, ABC):
    """An estimator whose parameters were fitted or set by hand."""

    n_components: int = 1
    _: KW_ONLY
    algorithm: str = "viterbi"  # for decode and predict: viterbi (the best path) | map (the best state at each step)
    random_state: Any = None
    params: str = "st"  # parameters to train, one letter each
    init_params: str = "st"  # parameters to initialise before training
    implementation: str = "log"  # log | scaling, for hmmlearn compatibility: both use scaled arithmetic
    missing_values: Any = None  # a value that marks missing observations, besides None and masked entries
    device: str = "cpu"  # cpu | cuda | auto

    letters: ClassVar[dict[str, str]] = {"s": "startprob_", "t": "transmat_"}  # letters of `params` -> attributes

    @abstractmethod
    def _emission(self) -> Emission:
        """Build the emission from the fitted attributes."""

    @abstractmethod
    def _adopt_emission(self, emission: Any) -> None:
        """Set the fitted attributes from an emission."""

    @abstractmethod
    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        """Check the observations; when fitting, infer their properties."""

    @abstractmethod
    def free_parameters(self) -> dict[str, int]:
        """The number of free parameters for each letter of `params`."""
        return {"s": self.n_components - 1, "t": self.n_components * (self.n_components - 1)}

    def _emitter(self) -> Emitter:
        """A function that samples one observation from a state."""
        emission, generator = self._emission(), torch.Generator()

        def emit(state: int, random: np.random.RandomState) -> Any:
            generator.manual_seed(int(random.randint(2**31 - 1)))
            return np.atleast_1d(emission.sample(torch.tensor([state]), generator)[0].numpy())

        return emit

    def score(self, X: Any, lengths: Any = None) -> float:
        """The log-likelihood log p(X)."""
        _, blocks = self._question(X, lengths)
        return self._log_likelihood(self._parts(), blocks)

    def score_samples(self, X: Any, lengths: Any = None) -> tuple[float, Array]:
        """log p(X), and the posterior p(state | X) of every observation, [n_samples, n_components]."""
        observed, blocks = self._question(X, lengths)
        log_prob, posteriors = 0.0, np.empty((len(observed.values), self.n_components))
        for block, problem in self._chains(blocks):
            answer = discrete.smooth(*problem)
            log_prob += float(answer.log_likelihood.sum())
            block.restore(answer.probs, posteriors)
        return log_prob, posteriors

    def predict_proba(self, X: Any, lengths: Any = None) -> Array:
        """The posterior p(state | X) of every observation, [n_samples, n_components]."""
        return self.score_samples(X, lengths)[1]

    def decode(self, X: Any, lengths: Any = None, algorithm: str | None = None) -> tuple[float, Array]:
        """A score, and the decoded state of every observation; `algorithm` is "viterbi" or "map".

        "viterbi" returns log p(path, X) and the most probable path. "map" returns the most probable state at each step;
        its score is, as in hmmlearn, the sum of the posterior probabilities of these states."""
        if one_of(ALGORITHMS, algorithm or self.algorithm, "algorithm") == "map":
            posteriors = self.predict_proba(X, lengths)
            return float(posteriors.max(1).sum()), posteriors.argmax(1)
        observed, blocks = self._question(X, lengths)
        log_prob, states = 0.0, np.empty(len(observed.values), np.int64)
        for block, problem in self._chains(blocks):
            path, scores = discrete.viterbi(*problem)
            log_prob += float(scores.sum())
            block.restore(path, states)
        return log_prob, states

    def predict(self, X: Any, lengths: Any = None) -> Array:
        """The decoded state of every observation."""
        return self.decode(X, lengths)[1]

    def sample(self, n_samples: int = 1, random_state: Any = None, currstate: int | None = None) -> tuple[Array, Array]:
        """Sample one sequence: observations [n_samples, n_features] and states [n_samples].

        The first state is `currstate`, if given."""
        self._check_fitted()
        random = check_random_state(self.random_state if random_state is None else random_state)
        start, moves = np.cumsum(self.startprob_), np.cumsum(self.transmat_, axis=1)
        states = [draw(start, random) if currstate is None else int(currstate)]
        emit = self._emitter()
        observations = [emit(states[0], random)]
        for _ in range(n_samples - 1):
            states.append(draw(moves[states[-1]], random))
            observations.append(emit(states[-1], random))
        return np.atleast_2d(observations), np.array(states, int)

    def get_stationary_distribution(self) -> Array:
        """The stationary distribution of the states. A reducible chain has several; this is the one reached from
        `startprob_`."""
        check_is_fitted(self, "transmat_")
        start, transmat = (torch.from_numpy(np.asarray(part, np.float64)) for part in (self.startprob_, self.transmat_))
        return long_run(start, transmat).numpy()

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike information criterion, -2 log p(X) + 2 k with k free parameters; lower is better."""
        return -2 * self.score(X, lengths) + 2 * sum(self.free_parameters().values())

    def bic(self, X: Any, lengths: Any = None) -> float:
        """Bayesian information criterion, -2 log p(X) + k log(n_samples) with k free parameters; lower is better."""
        log_prob = self.score(X, lengths)
        samples = len(self._read(X, lengths).values)
        return -2 * log_prob + float(np.log(samples)) * sum(self.free_parameters().values())

    def _question(self, X: Any, lengths: Any) -> tuple[Observations, list[Block]]:
        self._check_fitted()
        observed = self._read(X, lengths)
        return observed, self._blocks(observed)

    def _chains(self, blocks: list[Block]) -> Iterator[tuple[Block, Problem]]:
        parts = self._parts()
        return ((block, problem(parts, block)) for block in blocks)

    def _log_likelihood(self, parts: Parts, blocks: Sequence[Block]) -> float:
        """Total log-likelihood of all blocks."""
        first, *others = (discrete.log_likelihood(*problem(parts, block)).sum() for block in blocks)
        return float(sum(others, first))

    def _blocks(self, observed: Observations, copies: int = 1) -> list[Block]:
        """The observations in blocks, on the device used for inference; a GPU processes all copies at once."""
        device = choose_device(self.device)
        features = observed.values[0].size
        return make_blocks(observed, self.n_components * features * (copies if device != "cpu" else 1), device)

    def _tensor(self, value: Any) -> Tensor:
        return torch.from_numpy(np.array(value, np.float64)).to(choose_device(self.device))

    def _parts(self) -> Parts:
        """The model described by the fitted attributes."""
        return Parts(self._tensor(self.startprob_), Dense(self._tensor(self.transmat_)), self._emission())

    def _adopt(self, parts: Parts) -> None:
        """Set the fitted attributes from a model."""
        self.startprob_, self.transmat_ = parts.start.cpu().numpy(), parts.transition.dense().cpu().numpy()
        self._adopt_emission(parts.emission)

    def _check_fitted(self) -> None:
        if not hasattr(self, "startprob_"):
            check_is_fitted(self, "startprob_")  # raises
        self._check_settings()
        self._check()

    def _check_settings(self) -> None:
        """Raise on invalid constructor arguments."""
        if self.n_components < 1:
            raise InputError(f"n_components is {self.n_components}: it must be at least 1.")
        one_of(ALGORITHMS, self.algorithm, "algorithm")
        one_of(IMPLEMENTATIONS, self.implementation, "implementation")
        for name in ("params", "init_params"):
            unknown = set(getattr(self, name)) - set(self.letters)
            if unknown:
                raise InputError(f"{name} has unknown letters {sorted(unknown)}; choose from {''.join(self.letters)}.")

    def _check(self) -> None:
        """Raise on invalid parameters."""
        self._check_distributions("startprob_", (self.n_components,))
        self._check_distributions("transmat_", (self.n_components, self.n_components))

    def _check_distributions(self, name: str, shape: tuple[int, ...]) -> None:
        """Convert an attribute to an array of that shape and check that its rows are probabilities."""
        value = np.asarray(getattr(self, name), dtype=np.float64)
        setattr(self, name, value)
        if value.shape != shape:
            raise InputError(f"{name} must have the shape {shape}, not {value.shape}.")
        if not value.min() >= 0:
            raise InputError(f"{name} contains negative or NaN probabilities.")
        sums = value.sum(-1)
        wrong = abs(sums - 1) > SUM_TOLERANCE
        if wrong.any():
            found = sums if sums.ndim == 0 else sums[wrong][0]
            rows = "must" if sums.ndim == 0 else "rows must"
            raise InputError(f"{name} {rows} sum to 1 (got {found:.4f}); normalise it.")


def problem(parts: Parts, block: Block) -> Problem:
    """The inference inputs for one block."""
    start, transition, emission = parts
    prior = Belief(start.expand(len(block.lengths), -1))
    return prior, transition, emission.potentials(block.observations), block.lengths


def draw(cumulative: Array, random: np.random.RandomState) -> int:
    """Sample an index by inverting the CDF at a uniform random number."""
    return min(int(np.searchsorted(cumulative, random.rand(), side="right")), len(cumulative) - 1)


def one_of(choices: tuple[str, ...], name: str, what: str) -> str:
    if name not in choices:
        raise InputError(f"{what} is {name!r}; use {' or '.join(choices)}.")
    return name
