"""Baum-Welch and variational inference of every class of hmmlearn, beside ours: the same data, seed and iterations."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

from benchmarks.problem import Shape
from benchmarks.report import emit

KINDS = ("spherical", "diag", "full", "tied")
FEATURES, SYMBOLS, ITERATIONS = 3, 8, 10
AGREEMENT = 1e-8
Array = np.ndarray[Any, Any]


SIZES = ((1, 1000), (10, 1000), (20, 50), (200, 50), (1, 10_000))  # sequences x steps
SHAPES = tuple(Shape(states, *size) for states in (3, 8, 20) for size in SIZES)
QUICK = (Shape(3, 1, 1000), Shape(3, 20, 50))


def vectors(shape: Shape, random: np.random.RandomState) -> Array:
    states = np.repeat(random.randint(shape.states, size=-(-shape.num_tokens // 10)), 10)[: shape.num_tokens]
    return random.randn(shape.num_tokens, FEATURES) * (1 + np.arange(FEATURES)) + 3 * states[:, None]


def symbols(shape: Shape, random: np.random.RandomState) -> Array:
    return random.randint(SYMBOLS, size=(shape.num_tokens, 1))


def counts(shape: Shape, random: np.random.RandomState) -> Array:
    return random.poisson(1 + 5 * random.randint(3, size=(shape.num_tokens, FEATURES)))


def bags(shape: Shape, random: np.random.RandomState) -> Array:
    return random.multinomial(10, np.arange(1, SYMBOLS + 1) / 36, shape.num_tokens)


CLASSES: list[tuple[str, str, dict[str, Any], Callable[[Shape, np.random.RandomState], Array]]] = [
    ("hmm", "CategoricalHMM", {}, symbols),
    *[("hmm", "GaussianHMM", {"covariance_type": kind}, vectors) for kind in KINDS],
    *[("hmm", "GMMHMM", {"n_mix": 2, "covariance_type": kind}, vectors) for kind in KINDS],
    ("hmm", "MultinomialHMM", {}, bags),
    ("hmm", "PoissonHMM", {}, counts),
    ("vhmm", "VariationalCategoricalHMM", {}, symbols),
    *[("vhmm", "VariationalGaussianHMM", {"covariance_type": kind}, vectors) for kind in KINDS],
]


def seconds(model: Any, X: Array, lengths: Array) -> tuple[float, float]:
    """CPU time of a fit, without the initialisation, which is scikit-learn's in both; and its last history entry."""
    begin = time.process_time()
    model.fit(X, lengths)
    return time.process_time() - begin, model.monitor_.history[-1]


def compare(module: str, name: str, options: dict[str, Any], X: Array, shape: Shape, repeats: int) -> None:
    """Fit both in turn, from the parameters of the same initialisation."""
    lengths = np.full(shape.sequences, shape.length)
    packages = [import_module(f"{package}.{module}") for package in ("trellis", "hmmlearn")]
    settings = {"random_state": 0, "tol": -np.inf, "implementation": "scaling", **options}
    started = getattr(packages[0], name)(shape.states, n_iter=0, **settings).fit(X, lengths)
    fitted = {key: value for key, value in vars(started).items() if key.endswith("_") and key != "n_features_in_"}
    found: list[list[float]] = [[], []]
    bounds = [0.0, 0.0]
    for turn in range(repeats + 1):
        for i, package in enumerate(packages):
            model = getattr(package, name)(shape.states, n_iter=ITERATIONS, init_params="", **settings)
            for key, value in fitted.items():
                setattr(model, key, np.array(value) if np.ndim(value) else value)
            used, bounds[i] = seconds(model, X, lengths)
            found[i] += [used] if turn else []  # the first call may compile
    ours, theirs = median(found[0]), median(found[1])
    case = f"{name} {options.get('covariance_type', '')} {shape.name}".replace("  ", " ")
    work = shape.num_tokens * ITERATIONS
    same = bool(np.isclose(bounds[0], bounds[1], rtol=AGREEMENT))
    more = {"agrees": same, "repeats": repeats, "iterations": ITERATIONS}
    emit("em", case, "fit", work / ours, "hmmlearn", work / theirs, theirs / ours, "steps/s", **more)


def run(quick: bool, repeats: int) -> None:
    try:
        import_module("hmmlearn")
    except ImportError:
        print("em: the classes of hmmlearn are skipped, since it is not installed.", file=sys.stderr)
        return
    logging.disable()
    for shape in QUICK if quick else SHAPES:
        for module, name, options, data in CLASSES:
            compare(module, name, options, data(shape, np.random.RandomState(0)), shape, repeats)
