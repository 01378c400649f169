"""Queries of an HMM with given parameters: log-likelihood, Viterbi, posteriors, sampling."""

import string
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from trellis.devices import choose_device
from trellis.emissions import Emission, Vectors
from trellis.errors import InputError
from trellis.estimators import hooks, inference
from trellis.estimators.blocks import Block, make_blocks, tensor
from trellis.estimators.inputs import Array, Observations, lengths_of, read_numbers
from trellis.estimators.supervision import by_sequence, weighted
from trellis.inference.stationary import long_run
from trellis.parts import Parts
from trellis.transitions import Dense

Emitter = Callable[[int, np.random.RandomState], Any]
SUM_TOLERANCE = 1e-5  # how much the sum of probabilities set by hand may differ from 1
ALGORITHMS, IMPLEMENTATIONS = ("viterbi", "map"), ("log", "scaling")


class InfersArguments(BaseEstimator):
    """An estimator with constructor arguments that `fit` infers if they are None. `get_params` still returns None for
    them."""

    _inferred: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._inferred:
            self._inferred = self._inferred - {name}
        super().__setattr__(name, value)

    def _infer(self, name: str, value: Any) -> None:
        """Set a constructor argument that was not given."""
        setattr(self, name, value)
        self._inferred = self._inferred | {name}

    def _given(self, name: str) -> bool:
        return getattr(self, name) is not None and name not in self._inferred

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return super().get_params(deep) | dict.fromkeys(self._inferred)


@dataclass(repr=False, eq=False)
class FittedHMM(hooks.Hooks, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator whose parameters were fitted or set by hand."""

    n_components: int = 1
    _: KW_ONLY
    algorithm: str = "viterbi"
    random_state: Any = None
    params: str = string.ascii_letters
    init_params: str = string.ascii_letters
    implementation: str = "log"
    missing_values: Any = None
    device: str = "cpu"
    sequence_id: str | None = None

    letters: ClassVar[dict[str, str]] = {"s": "startprob_", "t": "transmat_"}  # letters of `params` -> attributes

    def _emission(self) -> Emission:
        """Build the emission from the fitted attributes."""
        if not hooks.overrides(self, *hooks.LIKELIHOOD):
            raise InputError(f"{type(self).__name__} has no emission; override _compute_log_likelihood.")
        return hooks.Given(self.n_components)

    def _adopt_emission(self, emission: Any) -> None:
        """Set the fitted attributes from an emission."""

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        """Read and check the observations; when fitting, infer arguments such as `n_features` from them."""
        return read_numbers(X, lengths, self.missing_values)

    def free_parameters(self) -> dict[str, int]:
        """The number of free parameters for each letter of `params`."""
        return {"s": self.n_components - 1, "t": self.n_components * (self.n_components - 1)}

    def _emitter(self) -> Emitter:
        """A function that samples one observation from a state."""
        if type(self)._emission is FittedHMM._emission:
            return lambda state, random: ()
        emission, generator = self._emission(), torch.Generator()

        def emit(state: int, random: np.random.RandomState) -> Any:
            generator.manual_seed(int(random.randint(2**31 - 1)))
            return np.atleast_1d(emission.sample(torch.tensor([state]), generator)[0].numpy())

        return emit

    def score(self, X: Any, y: Any = None, lengths: Any = None, *, sample_weight: Any = None) -> float:
        """The log-likelihood log p(X), optionally with a weight for each sequence. `lengths` may also be the second
        argument."""
        observed, blocks = self._question(X, lengths_of(X, y, lengths))
        if sample_weight is not None:
            blocks = self._blocks(weighted(observed, sample_weight))
        return self._log_likelihood(self._scoring_parts(), blocks)

    def score_samples(self, X: Any, lengths: Any = None) -> tuple[float, Array]:
        """log p(X), and the posterior p(state | X) of every observation, [n_samples, n_components]."""
        observed, blocks = self._question(X, lengths)
        log_prob, posteriors = 0.0, np.empty((len(observed.values), self.n_components))
        parts = self._scoring_parts()
        for block in blocks:
            found, probs = inference.smooth(parts, block)
            log_prob += found
            block.restore(probs, posteriors)
        return log_prob, posteriors

    def predict_proba(self, X: Any, lengths: Any = None) -> Array:
        """The posterior p(state | X) of every observation, [n_samples, n_components]."""
        return self.score_samples(X, lengths)[1]

    def transform(self, X: Any, lengths: Any = None) -> Array:
        """The posterior p(state | X) of every observation, as features for the next step of a pipeline."""
        return self.predict_proba(X, lengths)

    def fit_transform(self, X: Any, y: Any = None, lengths: Any = None) -> Array:
        """Fit, and return the posteriors of X."""
        lengths = lengths_of(X, y, lengths)
        return self.fit(X, lengths=lengths).transform(X, lengths)

    def decode(self, X: Any, lengths: Any = None, algorithm: str | None = None) -> tuple[float, Array]:
        """Decode the states; returns a score, and the state of every observation. `algorithm` is "viterbi" or "map".

        "viterbi" returns log p(path, X) and the most probable path. "map" returns the most probable state at each step;
        its score is, as in hmmlearn, the sum of the posterior probabilities of these states."""
        if one_of(ALGORITHMS, algorithm or self.algorithm, "algorithm") == "map":
            posteriors = self.predict_proba(X, lengths)
            return float(posteriors.max(1).sum()), posteriors.argmax(1)
        observed, blocks = self._question(X, lengths)
        log_prob, states = 0.0, np.empty(len(observed.values), np.int64)
        parts = self._scoring_parts()
        for block in blocks:
            found, path = inference.viterbi(parts, block)
            log_prob += found
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
        hooked = hooks.overrides(self, "_generate_sample_from_state")
        emit = self._generate_sample_from_state if hooked else self._emitter()
        observations = [emit(states[0], random)]
        for _ in range(n_samples - 1):
            states.append(draw(moves[states[-1]], random))
            observations.append(emit(states[-1], random))
        return np.atleast_2d(observations), np.array(states, int)

    def get_stationary_distribution(self) -> Array:
        """The stationary distribution of the states. A reducible chain has several stationary distributions; for such a
        chain, the one reached from `startprob_` is returned."""
        check_is_fitted(self, "transmat_")
        transmat = torch.from_numpy(np.asarray(self.transmat_, np.float64))
        start = getattr(self, "startprob_", np.full(len(transmat), 1 / len(transmat)))
        return long_run(torch.from_numpy(np.asarray(start, np.float64)), transmat).numpy()

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike information criterion, -2 log p(X) + 2 k with k free parameters; lower is better."""
        return -2 * self.score(X, lengths) + 2 * self._num_free()

    def bic(self, X: Any, lengths: Any = None) -> float:
        """Bayesian information criterion, -2 log p(X) + k log(n_samples) with k free parameters; lower is better."""
        observed, blocks = self._question(X, lengths)
        log_prob = self._log_likelihood(self._scoring_parts(), blocks)
        return -2 * log_prob + float(np.log(len(observed.values))) * self._num_free()

    def _num_free(self) -> int:
        return sum(self._get_n_fit_scalars_per_param().values())

    @property
    def _n_features_out(self) -> int:
        """The number of columns that `transform` returns."""
        return self.n_components

    def _question(self, X: Any, lengths: Any) -> tuple[Observations, list[Block]]:
        self._check_fitted()
        hooked = hooks.overrides(self, *hooks.LIKELIHOOD)
        observed = hooks.read(self, X, lengths) if hooked else self._observe(X, lengths)
        return observed, self._blocks(observed)

    def _observe(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        """Read the observations; a DataFrame is first divided into sequences."""
        if self.sequence_id is None:
            return self._read(X, lengths, fitting)
        X, lengths, order = by_sequence(X, self.sequence_id, lengths)
        return self._read(X, lengths, fitting)._replace(order=order)

    def _log_likelihood(self, parts: Parts, blocks: Sequence[Block]) -> float:
        """Total log-likelihood of all blocks."""
        return sum(inference.log_likelihood(parts, block) for block in blocks)

    def _blocks(self, observed: Observations, copies: int = 1) -> list[Block]:
        """The observations in blocks, on the device used for inference. `copies` is the number of restarts, which a GPU
        processes all at once."""
        device = choose_device(self.device)
        numbers = self.n_components * observed.values[0].size * (copies if device != "cpu" else 1)
        return make_blocks(observed, self.n_components, numbers, device)

    def _tensor(self, value: Any) -> Tensor:
        return tensor(np.array(value, np.float64), choose_device(self.device))

    def _parts(self) -> Parts:
        """The model described by the fitted attributes."""
        return Parts(self._tensor(self.startprob_), Dense(self._tensor(self.transmat_)), self._emission())

    def _scoring_parts(self) -> Parts:
        """The model used for scoring and prediction."""
        hooked = hooks.overrides(self, *hooks.LIKELIHOOD)
        return self._parts().with_emission(hooks.Given(self.n_components)) if hooked else self._parts()

    def _training_parts(self) -> Parts:
        """The model that EM trains."""
        return self._parts()

    def _bound(self, parts: Parts) -> float:
        """The difference between the training objective and the log-likelihood; zero in EM."""
        return 0.0

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        """The statistics of the emission, under the names that hmmlearn uses."""
        return {}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        """The inverse of `_named_statistics`."""
        return torch.zeros(0)

    def _empty_statistics(self) -> Tensor:
        """The statistics of the emission for no observations: all zero."""
        emission, features = self._training_parts().emission, getattr(self, "n_features", 0)
        nothing = self._tensor(np.empty((0, features)))
        return emission.statistics(
            Vectors(nothing, torch.empty(1, 0, dtype=torch.int64)), nothing.new_empty(0, self.n_components)
        )

    def _adopt(self, parts: Parts) -> None:
        """Set the fitted attributes from a model."""
        self.startprob_, self.transmat_ = parts.start.cpu().numpy(), parts.transition.dense().cpu().numpy()
        self._adopt_emission(parts.emission)

    def _check_fitted(self) -> None:
        if not hasattr(self, "startprob_"):
            check_is_fitted(self, "startprob_")  # raises
        self._check_settings()
        self._check()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "startprob_")

    def _check_settings(self) -> None:
        """Raise on invalid constructor arguments."""
        if self.n_components < 1:
            raise InputError(f"n_components is {self.n_components}: it must be at least 1.")
        one_of(ALGORITHMS, self.algorithm, "algorithm")
        one_of(IMPLEMENTATIONS, self.implementation, "implementation")
        for name in ("params", "init_params") if self.letters is not FittedHMM.letters else ():
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
        if not np.minimum.reduce(value, None) >= 0:
            raise InputError(f"{name} contains negative or NaN probabilities.")
        sums = np.add.reduce(value, -1)
        wrong = abs(sums - 1) > SUM_TOLERANCE
        if wrong.any():
            found = sums if sums.ndim == 0 else sums[wrong][0]
            rows = "must" if sums.ndim == 0 else "rows must"
            raise InputError(f"{name} {rows} sum to 1 (got {found:.4f}); normalise it.")


def draw(cumulative: Array, random: np.random.RandomState) -> int:
    """Sample an index by inverting the CDF at a uniform random number."""
    return min(int(np.searchsorted(cumulative, random.rand(), side="right")), len(cumulative) - 1)


def one_of(choices: tuple[str, ...], name: str, what: str) -> str:
    if name not in choices:
        raise InputError(f"{what} is {name!r}; use {' or '.join(choices)}.")
    return name
