"""The number of states, chosen by an information criterion or by held-out likelihood."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.utils import check_random_state

from trellis.errors import InputError
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import one_of
from trellis.estimators.inputs import Array, Observations
from trellis.estimators.splits import hold_out

CRITERIA = ("bic", "aic", "held-out")
Sample = tuple[Any, Any]  # X and lengths


class Candidate(NamedTuple):
    """One fit of `select_states`."""

    n_components: int
    restart: int
    seed: int
    log_likelihood: float  # of the training data
    held_out: float  # log-likelihood of the held-out sequences; NaN if there are none
    parameters: int  # the number of free parameters
    aic: float
    bic: float


@dataclass(frozen=True)
class Selection:
    """The result of `select_states`. `pandas.DataFrame(selection.table)` shows the table.

    Parameters
    ----------
    best : estimator
        The best estimator, fitted.
    table
        Every fit, by number of states and restart.
    criterion
        The criterion by which `best` was chosen.

    Examples
    --------
    >>> X = np.array([0, 1, 2] * 20)
    >>> selection = trellis.select_states(trellis.CategoricalHMM, X, n_components=(1, 2), random_state=0)
    >>> len(selection.table), selection.best.n_components == min(selection.table, key=lambda one: one.bic).n_components
    (2, True)
    """

    best: Any
    table: list[Candidate]
    criterion: str

    def __repr__(self) -> str:
        return f"Selection(best={self.best!r}, {len(self.table)} fits, criterion={self.criterion!r})"


def select_states(
    model: Any,
    X: Any,
    lengths: Any = None,
    n_components: Iterable[int] = range(1, 11),
    *,
    criterion: str = "bic",
    n_restarts: int = 1,
    validation_fraction: float = 0.2,
    n_jobs: int | None = None,
    random_state: Any = None,
) -> Selection:
    """Fit an estimator with each number of states, from several seeds. Returns the best fit and a table of all fits.

    Parameters
    ----------
    model : estimator or class
        An estimator or its class. Each fit sets its `n_components` and `random_state`. Arguments whose shape depends on
        the number of states must be functions of this number, for example `transmat_mask=left_right`.
    X, lengths : array or list, array or None
        The observations and the lengths of their sequences, as for `fit`.
    n_components
        The numbers of states to try.
    criterion
        "bic", "aic" or "held-out". With "held-out", candidates are compared by the log-likelihood of held-out
        sequences, and the best is fitted again to all data.
    n_restarts
        The number of seeds for each number of states.
    validation_fraction
        The fraction of the sequences to hold out.
    n_jobs
        The number of fits in parallel, as in scikit-learn. Results do not depend on it.
    random_state : int, RandomState or None
        The seed or generator from which the seeds of the fits are drawn.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(60, 1)) + 5 * (np.arange(60) // 10 % 2)[:, None]
    >>> model = trellis.GaussianHMM(n_iter=50)
    >>> trellis.select_states(model, X, n_components=(1, 2, 3), n_restarts=3, random_state=0).best.n_components
    2
    """
    held_out = one_of(CRITERIA, criterion, "criterion") == "held-out"
    model, sizes = model() if isinstance(model, type) else model, list(n_components)
    if not isinstance(model, BaseHMM) or not sizes or n_restarts < 1:
        raise InputError("select_states needs an HMM estimator, at least one number of states and n_restarts >= 1.")
    random = check_random_state(random_state)
    seeds = random.randint(2**31 - 1, size=n_restarts).tolist()
    data: Any = ((X, lengths), None)
    reading: dict[str, Any] = {}
    if held_out:
        *data, reading = split(clone(model).set_params(n_components=sizes[0]), X, lengths, validation_fraction, random)
    jobs = [(size, restart, seed) for size in sizes for restart, seed in enumerate(seeds)]
    models = (clone(model).set_params(n_components=size, random_state=seed, **reading) for size, _, seed in jobs)
    found = Parallel(n_jobs=n_jobs)(delayed(fit)(*pair, *data) for pair in zip(models, jobs, strict=True))
    merit = {"bic": lambda one: -one.bic, "aic": lambda one: -one.aic, "held-out": lambda one: one.held_out}[criterion]
    chosen, best = max(found, key=lambda pair: merit(pair[1]))
    if held_out:
        chosen = clone(model).set_params(n_components=best.n_components, random_state=best.seed).fit(X, lengths)
    return Selection(chosen, [candidate for _, candidate in found], criterion)


def fit(model: BaseHMM, job: tuple[int, int, int], train: Sample, valid: Sample | None) -> tuple[BaseHMM, Candidate]:
    """Fit one candidate."""
    model.fit(*train)
    log_likelihood, samples = model.score(*train), len(model._observe(*train).values)
    held_out = np.nan if valid is None else model.score(*valid)
    parameters = sum(model.free_parameters().values())
    aic, bic = (-2 * log_likelihood + cost * parameters for cost in (2.0, float(np.log(samples))))
    return model, Candidate(*job, log_likelihood, held_out, parameters, aic, bic)


def split(
    probe: Any, X: Any, lengths: Any, fraction: float, random: np.random.RandomState
) -> tuple[Sample, Sample, dict[str, Any]]:
    """Training and held-out sequences, and the settings with which to read them."""
    train, valid = hold_out(probe._observe(X, lengths, fitting=True), fraction, random)
    symbols = {"n_features": probe.n_features} if "n_features" in probe.get_params() else {}
    return as_input(train), as_input(valid), {"sequence_id": None, **symbols}


def as_input(observed: Observations) -> tuple[Array, Array]:
    """Observations as X and lengths, masked where missing."""
    missing = np.broadcast_to(observed.missing.reshape(-1, *[1] * (observed.values.ndim - 1)), observed.values.shape)
    return np.ma.masked_array(observed.values, missing), observed.lengths
