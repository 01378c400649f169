"""The same models here and in hmmlearn, and data for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trellis.estimators import GMMHMM, CategoricalHMM, GaussianHMM, MultinomialHMM, PoissonHMM

STATES, SYMBOLS, FEATURES, MIXED, TRIALS = 3, 6, 2, 2, 5
LENGTHS = [40, 1, 25, 60, 2]
TOLERANCE = 1e-8


class Case(NamedTuple):
    """A kind of model by name, and how to build it."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.options.values())])

    def build(self, module: Any, **options: Any) -> Any:
        return getattr(module, self.name)(STATES, **self.options, **options)

    def ours(self, **options: Any) -> Any:
        return CLASSES[self.name](STATES, **self.options, **options)

    def data(self, seed: int = 0) -> np.ndarray:
        return DATA[self.name](np.random.RandomState(seed), sum(LENGTHS))


CLASSES = {kind.__name__: kind for kind in (CategoricalHMM, GaussianHMM, PoissonHMM, MultinomialHMM, GMMHMM)}
DATA = {
    "CategoricalHMM": lambda random, n: random.choice(SYMBOLS, p=np.arange(1, SYMBOLS + 1) / 21, size=(n, 1)),
    "GaussianHMM": lambda random, n: random.randn(n, FEATURES) * [1, 2] + 4 * random.randint(STATES, size=(n, 1)),
    "PoissonHMM": lambda random, n: random.poisson(1 + 6 * random.randint(STATES, size=(n, FEATURES))),
    "MultinomialHMM": lambda random, n: random.multinomial(TRIALS, np.arange(1, SYMBOLS + 1) / 21, n),
}
DATA["GMMHMM"] = DATA["GaussianHMM"]
KINDS = ("spherical", "diag", "full", "tied")
CATEGORICAL, POISSON = Case("CategoricalHMM", {}), Case("PoissonHMM", {})
MULTINOMIAL = Case("MultinomialHMM", {"n_trials": TRIALS})
GAUSSIANS = [Case("GaussianHMM", {"covariance_type": kind}) for kind in KINDS]
MIXTURES = [Case("GMMHMM", {"n_mix": MIXED, "covariance_type": kind}) for kind in KINDS]
CASES = [CATEGORICAL, *GAUSSIANS, POISSON, MULTINOMIAL, *MIXTURES]
EMISSION = {
    "CategoricalHMM": ["emissionprob_"],
    "GaussianHMM": ["means_", "_covars_"],
    "PoissonHMM": ["lambdas_"],
    "MultinomialHMM": ["emissionprob_"],
    "GMMHMM": ["weights_", "means_", "covars_"],
}


def parameters(model: Any) -> list[np.ndarray]:
    """All fitted numbers in our shapes; hmmlearn keeps a spherical variance once for each feature."""
    names = ["startprob_", "transmat_", *EMISSION[type(model).__name__]]
    values = [np.asarray(getattr(model, name)) for name in names]
    if getattr(model, "covariance_type", "") == "spherical" and not hasattr(model, "n_mix"):
        values[-1] = values[-1].reshape(STATES, -1)[:, 0]
    return values


def set_by_hand(model: Any, seed: int = 1) -> None:
    """Parameters drawn at random, through the public attributes."""
    random = np.random.RandomState(seed)
    model.startprob_ = random.dirichlet(np.ones(STATES))
    model.transmat_ = random.dirichlet(np.ones(STATES), STATES)
    if hasattr(model, "emissionprob_prior") or hasattr(model, "n_trials"):
        model.emissionprob_ = random.dirichlet(np.ones(SYMBOLS), STATES)
    elif hasattr(model, "lambdas_prior"):
        model.lambdas_ = random.uniform(1, 10, (STATES, FEATURES))
    elif hasattr(model, "n_mix"):
        model.weights_ = random.dirichlet(np.ones(MIXED), STATES)
        model.means_ = random.randn(STATES, MIXED, FEATURES) + 4 * np.arange(STATES)[:, None, None]
        root = random.randn(STATES, MIXED, FEATURES, FEATURES)
        full = root @ root.swapaxes(-1, -2) + np.eye(FEATURES)
        kinds = {"spherical": full[..., 0, 0], "diag": np.abs(full[..., 0]), "full": full, "tied": full[:, 0]}
        model.covars_ = kinds[model.covariance_type]
    else:
        model.means_ = random.randn(STATES, FEATURES) + 4 * np.arange(STATES)[:, None]
        root = random.randn(STATES, FEATURES, FEATURES)
        full = root @ root.swapaxes(1, 2) + np.eye(FEATURES)
        kinds = {"spherical": full[:, 0, 0], "diag": np.abs(full[:, 0]), "full": full, "tied": full[0]}
        model.covars_ = kinds[model.covariance_type]


def assert_close(ours: Any, theirs: Any, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
