"""A lower bound on the time of the recursions on this machine, from multiply-adds, bytes and measured peak rates."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problem import Problem

# multiply-adds per token and K^2; Viterbi's sum and maximum do not fuse, so they count twice
PRODUCTS = {"forward": 1, "smooth": 2, "em": 3, "viterbi": 2}
# values read or written per token and K: potentials in each pass; a_t out and in; posterior out; visits in and out
NUMBERS = {"forward": 1, "smooth": 5, "em": 6, "viterbi": 3}


class Machine(NamedTuple):
    """Measured peak rates of all cores."""

    flops: dict[str, float]  # by precision
    bandwidth: float  # bytes per second

    def describe(self, precision: str) -> dict[str, Any]:
        return {"gflops": self.flops[precision] / 1e9, "gbytes": self.bandwidth / 1e9, "cores": os.cpu_count()}


def measure() -> Machine:
    """Measure a large matrix product in each precision and a large copy; the best of several runs."""
    flops = {}
    for precision in ("float32", "float64"):
        square = np.ones((1536, 1536), precision)
        flops[precision] = 2 * 1536**3 / fastest(lambda square=square: square @ square)
    source = np.ones(2**24)
    target = np.empty_like(source)
    return Machine(flops, 2 * source.nbytes / fastest(lambda: np.copyto(target, source)))


def fastest(run: Any, repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return min(times)


def seconds(machine: Machine, problem: Problem, task: str, precision: str) -> float:
    """The larger of the two bounds for one pass over the problem; it ignores the latency between steps."""
    states, tokens = problem.states, problem.num_tokens
    compute = 2 * PRODUCTS[task] * states**2 * tokens / machine.flops[precision]
    traffic = (8 + NUMBERS[task] * states * np.dtype(precision).itemsize) * tokens / machine.bandwidth
    return max(compute, traffic)
