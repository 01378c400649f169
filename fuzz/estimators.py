"""Estimators: arrays of extreme, constant, missing and ill-shaped numbers; results are never NaN."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.harness import FindingError
from trellis import estimators

REAL = ["GaussianHMM", "GMMHMM", "VariationalGaussianHMM"]
COUNTS = ["PoissonHMM", "MultinomialHMM"]
SYMBOLS = ["CategoricalHMM", "VariationalCategoricalHMM"]
COVARIANCES = ["diag", "full", "spherical", "tied"]
SCALES = [1.0, 1.0, 1.0, 0.0, 1e-300, 1e-30, 1e30, 1e140, 1e300]


class Target:
    """Fit an estimator, and ask for scores, states and posteriors."""

    def __init__(self, folder: Path) -> None:
        self.plain = np.random.default_rng(0).normal(size=(60, 2))

    def honest(self) -> None:
        for name in REAL:
            use(getattr(estimators, name)(2, n_iter=3, random_state=0), self.plain, None)
        for name in COUNTS + SYMBOLS:
            use(getattr(estimators, name)(2, n_iter=3, random_state=0), abs(self.plain).astype(int), None)

    def case(self, random: Random) -> None:
        name = random.choice(REAL + COUNTS + SYMBOLS)
        options: dict[str, Any] = {"n_iter": random.choice([0, 1, 3]), "random_state": random.randrange(100)}
        if name in REAL:
            options["covariance_type"] = random.choice(COVARIANCES)
        model = getattr(estimators, name)(random.choice([1, 2, 2, 3, 7]), **options)
        use(model, self.observations(random, name), self.lengths(random))

    def observations(self, random: Random, name: str) -> Any:
        draws = np.random.default_rng(random.randrange(1 << 30))
        shape = random.choice([1, 2, 5, 40]), random.choice([1, 2, 3])
        if name in REAL:
            X: Any = draws.normal(size=shape) * random.choice(SCALES) + random.choice(SCALES) * random.choice(
                [0, 0, 1, -1]
            )
        else:
            X = draws.integers(random.choice([0, 0, 0, -1]), random.choice([1, 2, 9, 2**60]), size=shape)
            X = X[:, :1] if name in SYMBOLS else X
        if random.random() < 0.2:
            X = X.astype(float)
            X.flat[random.randrange(X.size)] = random.choice([np.nan, np.inf, -np.inf, 1e308, 5e-324, -0.5])
        return random.choice([X, X, X, X, X.tolist(), X.astype(np.float32), X[:0], X.T])

    def lengths(self, random: Random) -> Any:
        return random.choice([None, None, None, [1, 1], [0], [-1, 2], [2**63], [20, 20], "x", [[1]], 2.5])


def use(model: Any, X: Any, lengths: Any) -> None:
    with np.errstate(all="ignore"):
        model.fit(X, lengths)
        found = {"score": model.score(X, lengths), "states": model.predict(X, lengths)}
        found["posterior"] = model.predict_proba(X, lengths)
    found |= {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    for name, value in found.items():
        if isinstance(value, float | np.ndarray) and np.asarray(value).dtype.kind == "f" and np.isnan(value).any():
            raise FindingError(f"{type(model).__name__}: {name} is NaN")
