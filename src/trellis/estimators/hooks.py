"""hmmlearn's hooks: the methods that subclasses override to change initialisation, emission, M-step or sampling.

Every hook has a default here, which can also be called directly. Hooks are used only if a subclass overrides one of
them. Inference is the same with and without hooks. The arrays that hmmlearn calls lattices hold log-probabilities, as
with its implementation="log".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from trellis.emissions import Emission, Vectors
from trellis.errors import InputError
from trellis.estimators.inputs import Array, Observations, checked_lengths
from trellis.estimators.monitor import log
from trellis.inference import discrete
from trellis.parts import Parts
from trellis.types import Belief, Counts, Potentials

Method = TypeVar("Method", bound=Callable[..., Any])
ENTRIES = 1 << 20  # expected transitions in memory at a time
LIKELIHOOD = "_compute_log_likelihood", "_compute_likelihood"
TRAINING = (
    *LIKELIHOOD, "_init", "_do_mstep", "_check_and_set_n_features",
    "_initialize_sufficient_statistics", "_accumulate_sufficient_statistics",
)  # fmt: skip
IGNORED = (
    "_do_estep", "_estep_begin", "_fit_log", "_fit_scaling", "_score", "_score_log", "_score_scaling",
    "_decode_viterbi", "_decode_map", "_compute_posteriors_log", "_compute_posteriors_scaling", "_compute_lower_bound",
    "_compute_subnorm_log_likelihood", "_compute_subnorm_likelihood",
    "_accumulate_sufficient_statistics_log", "_accumulate_sufficient_statistics_scaling",
)  # fmt: skip


def default(method: Method) -> Method:
    """Mark a method as the default of a hook."""
    vars(method)["default"] = True
    return method


def overrides(estimator: Any, *names: str) -> bool:
    """Whether the class of the estimator overrides one of the hooks `names`."""
    return any(not hasattr(getattr(type(estimator), name), "default") for name in names)


class Given(Emission):
    """An emission whose observations are the values log p(x_t | z) themselves, [N, K], which a hook has computed."""

    def __init__(self, num_states: int) -> None:
        self.num_states = num_states

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(observations.values, observations.rows, all_observed=all_observed)

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return visits.new_zeros(0)

    def maximised(self, statistics: Tensor, prior: Any) -> Given:
        return self

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        raise InputError("To sample, override _generate_sample_from_state.")


class Hooks:
    """The hooks and their defaults."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a class that overrides a method of hmmlearn that Trellis does not call."""
        super().__init_subclass__(**options)
        if found := [name for name in IGNORED if name in vars(cls)]:
            raise InputError(
                f"{cls.__name__} overrides {found[0]}, which Trellis does not call; override _compute_log_likelihood, "
                "_accumulate_sufficient_statistics or _do_mstep instead."
            )

    @default
    def _init(self: Any, X: Any, lengths: Any = None) -> None:
        """Initialise the parameters before training."""
        self._check_and_set_n_features(X)
        observed = self._read(X, lengths, fitting=True)
        self._initialise(self._letters_to_draw(), observed, self.random_state)
        self._warn_about_size(observed)

    @default
    def _check_and_set_n_features(self: Any, X: Any) -> None:
        """Check the number of features, or set it from the data."""
        found = np.shape(X)[1]
        if getattr(self, "n_features", found) != found:
            raise InputError(f"X has {found} features, but the model has {self.n_features}.")
        self.n_features = found

    @default
    def _compute_log_likelihood(self: Any, X: Any) -> Array:
        """log p(x_t | z) of one sequence: [T, K]."""
        if overrides(self, "_compute_likelihood"):
            with np.errstate(divide="ignore"):
                return np.log(self._compute_likelihood(X))
        return log_lattice(self, self._parts(), X).cpu().numpy()

    @default
    def _compute_likelihood(self: Any, X: Any) -> Array:
        """p(x_t | z) of one sequence: [T, K]."""
        with np.errstate(under="ignore"):
            return np.exp(self._compute_log_likelihood(X))

    @default
    def _initialize_sufficient_statistics(self: Any) -> dict[str, Any]:
        """Return sufficient statistics that are all zero."""
        states = self.n_components
        zeros = self._named_statistics(self._empty_statistics())
        return {"nobs": 0, "start": np.zeros(states), "trans": np.zeros((states, states))} | zeros

    @default
    def _accumulate_sufficient_statistics(
        self: Any,
        stats: dict[str, Any],
        X: Any,
        lattice: Array,
        posteriors: Array,
        fwdlattice: Array,
        bwdlattice: Array,
    ) -> None:
        """Add the statistics of one sequence to `stats`."""
        parts = self._training_parts()
        stats["nobs"] += 1
        stats["start"] += posteriors[0]
        stats["trans"] += expected_transitions(parts, lattice, fwdlattice, bwdlattice)
        if not isinstance(parts.emission, Given):
            observations = self._blocks(self._read(X, None))[0].observations
            potentials = parts.emission.potentials(observations)
            visits = torch.zeros_like(potentials.table)
            visits.index_add_(0, potentials.rows.flatten(), self._tensor(posteriors))
            for name, value in self._named_statistics(parts.emission.statistics(observations, visits)).items():
                stats[name] = stats[name] + value

    @default
    def _do_mstep(self: Any, stats: dict[str, Any]) -> None:
        """The M-step: update the parameters from the sufficient statistics `stats`."""
        parts = self._training_parts()
        emission = torch.zeros(0) if isinstance(parts.emission, Given) else self._unnamed_statistics(stats)
        counts = Counts(torch.zeros(()), self._tensor(stats["start"]), self._tensor(stats["trans"]), emission)
        self._adopt(parts.maximised(counts, self._prior()))

    @default
    def _generate_sample_from_state(self: Any, state: int, random_state: Any = None) -> Any:
        """Sample one observation from a state."""
        return self._emitter()(state, random_state)

    @default
    def _get_n_fit_scalars_per_param(self: Any) -> dict[str, int]:
        """The number of free parameters by letter of `params`."""
        return self.free_parameters()

    def _needs_init(self: Any, code: str, name: str, warns: bool = True) -> bool:
        """Whether `_init` must set an attribute. Logs a warning if this overwrites an existing value."""
        if warns and code in self.init_params and hasattr(self, name):
            log.warning(
                "Even though the %r attribute is set, it will be overwritten during initialization because "
                "'init_params' contains %r",
                *(name, code),
            )
        return code in self.init_params or not hasattr(self, name)

    def _check_sum_1(self: Any, name: str) -> None:
        """Raise unless an attribute holds distributions."""
        self._check_distributions(name, np.shape(getattr(self, name)))


def fit(estimator: Any, X: Any, lengths: Any, sample_weight: Any = None, states: Any = None) -> Any:
    """Fit an estimator by EM through its hooks; the E-step processes one sequence at a time."""
    if estimator.n_init > 1 or estimator.early_stopping:
        refuse(estimator, "n_init and early_stopping do")
    if sample_weight is not None or states is not None:
        refuse(estimator, "sample_weight and states do")
    X = check_array(X)
    estimator.n_features_in_ = X.shape[1]
    lengths = checked_lengths(lengths, len(X))
    estimator._init(X, lengths)
    estimator._check()
    (monitor,) = estimator._monitors()
    for _ in range(estimator.n_iter):
        stats, log_prob = expect(estimator, X, lengths)  # E-step
        estimator._do_mstep(stats)  # M-step
        monitor.report(log_prob)
        if monitor.converged:
            break
    setattr(estimator, "_own_monitor" if estimator._own_monitor else "_monitor", monitor)
    return estimator


def refuse(estimator: Any, what: str) -> NoReturn:
    raise InputError(f"{type(estimator).__name__} overrides hooks of hmmlearn; {what} not apply to such classes.")


def expect(estimator: Any, X: Array, lengths: Array) -> tuple[dict[str, Any], float]:
    """The E-step: sufficient statistics, and the log-likelihood or its lower bound."""
    stats, parts = estimator._initialize_sufficient_statistics(), estimator._training_parts()
    total = estimator._bound(parts)
    for part in np.split(X, np.cumsum(lengths)[:-1]):
        lattice = log_lattice(estimator, parts, part)
        log_prob, *arrays = infer(parts, lattice)
        estimator._accumulate_sufficient_statistics(stats, part, lattice.cpu().numpy(), *arrays)
        total += log_prob
    return stats, total


def log_lattice(estimator: Any, parts: Parts, X: Array) -> Tensor:
    """log p(x_t | z) of one sequence, by the hook or the emission: [T, K]."""
    if overrides(estimator, *LIKELIHOOD):
        return estimator._tensor(estimator._compute_log_likelihood(X))
    return parts.emission.potentials(estimator._blocks(estimator._read(X, None))[0].observations).gather()[0]


def infer(parts: Parts, lattice: Tensor) -> tuple[float, Array, Array, Array]:
    """log p(x), posteriors, and the logarithms of the forward and backward variables: [T, K] each."""
    problem = Belief(parts.start[None]), parts.transition, Potentials.of(lattice[None])
    filtered, smoothed = discrete.filter(*problem), discrete.smooth(*problem)
    alphas, posteriors = (found.probs[0].cpu().numpy() for found in (filtered, smoothed))
    totals = filtered.log_norms[0].cpu().numpy().cumsum()[:, None]
    with np.errstate(all="ignore"):
        betas = np.where(alphas > 0, posteriors / alphas, 0)
        forward, backward = np.log(alphas) + totals, np.log(betas) + totals[-1] - totals
    return float(smoothed.log_likelihood[0]), posteriors, forward, backward


def expected_transitions(parts: Parts, lattice: Array, forward: Array, backward: Array) -> Array:
    """Expected transitions of a sequence [K, K], from log p(x_t | z) and the logs of forward and backward variables."""
    with np.errstate(all="ignore"):
        moves = np.log(parts.transition.dense().cpu().numpy())
        ahead, total = (lattice + backward)[1:, None, :], np.logaddexp.reduce(forward[-1])
        chunk = max(1, ENTRIES // moves.size)
        counts = np.zeros_like(moves)
        for t in range(0, len(ahead), chunk):
            counts += np.exp(
                forward[t : t + chunk][: len(ahead) - t, :, None] + moves + ahead[t : t + chunk] - total
            ).sum(0)
    return counts


def read(estimator: Any, X: Any, lengths: Any) -> Observations:
    """The log-likelihoods that the hook of an estimator computes, as observations of `Given`."""
    X = check_array(X)
    lengths = checked_lengths(lengths, len(X))
    found = [np.asarray(estimator._compute_log_likelihood(x)) for x in np.split(X, np.cumsum(lengths)[:-1])]
    return Observations(np.concatenate(found), np.zeros(len(X), bool), lengths)
