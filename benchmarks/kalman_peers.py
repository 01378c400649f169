"""Kalman smoothing by Trellis and other libraries, each in its own process: `python -m benchmarks.kalman_peers JOB`."""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
GAPS: dict[str, Callable[[np.random.Generator, int, int], Array]] = {  # what is missing [T, p]
    "none": lambda random, steps, seen: np.zeros((steps, seen), bool),
    "steps": lambda random, steps, seen: np.repeat(random.random((steps, 1)) < 0.3, seen, 1),
    "values": lambda random, steps, seen: random.random((steps, seen)) < 0.3,
}


class System(NamedTuple):
    """x_0 ~ N(mean, start), x_t = A x_{t-1} + N(0, Q), y_t = C x_t + N(0, D), in float64."""

    mean: Array
    start: Array
    transition: Array
    noise: Array
    loadings: Array
    spread: Array
    values: Array  # [T, p], NaN where missing


def covariance(random: np.random.Generator, size: int) -> Array:
    root = random.standard_normal((size, size)) / size**0.5
    return root @ root.T + 0.5 * np.eye(size)


def draw(hidden: int, seen: int, steps: int, gaps: str, first: int | None = None) -> System:
    """A system whose transition is a rotation times 0.9, and observations of its first steps."""
    random = np.random.default_rng(0)
    transition = 0.9 * np.linalg.qr(random.standard_normal((hidden, hidden)))[0]
    noise, spread = covariance(random, hidden), covariance(random, seen)
    loadings = random.standard_normal((seen, hidden)) / hidden**0.5
    state, states = np.zeros(hidden), []
    for push in random.multivariate_normal(np.zeros(hidden), noise, steps):
        state = transition @ state + push
        states.append(state)
    values = np.array(states) @ loadings.T + random.multivariate_normal(np.zeros(seen), spread, steps)
    values[GAPS[gaps](random, steps, seen)] = np.nan
    return System(np.zeros(hidden), np.eye(hidden), transition, noise, loadings, spread, values[:first])


def trellis(system: System) -> Callable[[], Array]:
    import torch

    from trellis.inference import gaussian

    mean, start, transition, noise, loadings, spread, values = map(torch.from_numpy, system)
    given = gaussian.Normal(mean, start), gaussian.Dynamics(transition, noise)

    def smooth(seen: torch.Tensor) -> Array:
        potentials = gaussian.observe(gaussian.Observation(loadings, spread), seen[None])
        return gaussian.smooth(*given, potentials).means[0].numpy()

    smooth(values[:20])  # compiles
    return lambda: smooth(values)


def dynamax(system: System) -> Callable[[], Array]:
    import jax

    jax.config.update("jax_enable_x64", True)
    from dynamax.linear_gaussian_ssm import lgssm_smoother
    from dynamax.linear_gaussian_ssm.inference import make_lgssm_params

    if np.isnan(system.values).any():
        raise NotImplementedError("does not support missing values")
    mean, start, transition, noise, loadings, spread, values = map(jax.numpy.asarray, system)
    params = make_lgssm_params(mean, start, transition, noise, loadings, spread)
    compiled = jax.jit(lambda emissions: lgssm_smoother(params, emissions).smoothed_means)
    compiled(values).block_until_ready()
    return lambda: np.asarray(compiled(values).block_until_ready())


def pykalman(system: System) -> Callable[[], Array]:
    from pykalman import KalmanFilter

    if np.isnan(system.values).any() and not np.isnan(system.values).all(1)[np.isnan(system.values).any(1)].all():
        raise NotImplementedError("does not support partly missing steps")
    mean, start, transition, noise, loadings, spread, values = system
    model = KalmanFilter(transition, loadings, noise, spread, initial_state_mean=mean, initial_state_covariance=start)
    return lambda: np.asarray(model.smooth(np.ma.masked_invalid(values))[0])


def statsmodels(system: System, collapsed: bool = False) -> Callable[[], Array]:
    from statsmodels.tsa.statespace import kalman_smoother
    from statsmodels.tsa.statespace.initialization import Initialization

    mean, start, transition, noise, loadings, spread, values = system
    model = kalman_smoother.KalmanSmoother(k_endog=values.shape[1], k_states=len(mean))
    model.bind(np.asfortranarray(values.T))
    model["design"], model["obs_cov"] = loadings, spread
    model["transition"], model["selection"], model["state_cov"] = transition, np.eye(len(mean)), noise
    model.initialize(Initialization(len(mean), "known", constant=mean, stationary_cov=start))
    model.filter_collapsed = collapsed
    model.smoother_output = kalman_smoother.SMOOTHER_STATE | kalman_smoother.SMOOTHER_STATE_COV
    return lambda: model.smooth().smoothed_state.T


CONTESTANTS: dict[str, Callable[[System], Callable[[], Array]]] = {
    "trellis": trellis,
    "dynamax": dynamax,
    "pykalman": pykalman,
    "statsmodels": statsmodels,
    "statsmodels, collapsed": lambda system: statsmodels(system, collapsed=True),
}


def attempt(job: dict[str, Any]) -> dict[str, Any]:
    """The seconds of the fastest run, with the smoothed means in a file, or the reason for failure."""
    try:
        hidden, seen, steps = job["sizes"]
        smooth = CONTESTANTS[job["name"]](draw(hidden, seen, steps, job["gaps"], job["first"]))
        seconds: list[float] = []
        while len(seconds) < job["repeats"] and sum(seconds) < job["patience"]:
            begin = perf_counter()
            means = smooth()
            seconds.append(perf_counter() - begin)
    except ImportError as error:
        return {"error": f"not installed ({error.name})"}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:
        memory = "memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)
        return {"error": "out of memory" if memory else " ".join(f"{error}".split())[:80]}
    np.save(job["file"], means)
    return {"seconds": min(seconds), "repeats": len(seconds)}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    print(json.dumps(attempt(job)), file=answers, flush=True)
