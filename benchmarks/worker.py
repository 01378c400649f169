"""A process that runs one library: one JSON job per line on stdin, one JSON result per line on stdout.

A job has the sizes of the problem, the task, the iterations, and whether it is the first of its kind. In the first job,
a library that compiles is called once before, and the result is reduced to a digest.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.peers import CONTESTANTS, Contestant, Numpy
from benchmarks.problem import Problem


def digest(problem: Problem, task: str, answer: Any) -> float:
    """One number per result on which all libraries must agree; a log-likelihood is per token."""
    digests: dict[str, Callable[[], float]] = {
        "forward": lambda: answer / problem.num_tokens,
        "smooth": lambda: float(np.square(answer, dtype=np.float64).sum()) / problem.num_tokens,
        "viterbi": lambda: problem.path_score(answer) / problem.num_tokens,
        "em": lambda: float(np.log(Numpy(problem).filtered(answer)[0]).sum()) / problem.num_tokens,
    }
    return digests[task]()


def call(contestant: Contestant, task: str, iterations: int) -> tuple[float, Any]:
    """The seconds and the result of one run."""
    method = getattr(contestant, task)
    run = partial(method, iterations) if task == "em" else method
    begin = perf_counter()
    answer = run()
    return perf_counter() - begin, answer


class Worker:
    """Keeps the library's objects for the last problem, so that only its first job includes the preparation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: Problem | None = None
        self.contestant: Contestant | None = None

    def prepared(self, problem: Problem) -> Contestant:
        if self.contestant is None or problem != self.problem:
            self.contestant = None
            self.problem, self.contestant = problem, CONTESTANTS[self.name](problem)
        return self.contestant

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        problem, task = Problem(**job["problem"]), job["task"]
        contestant = self.prepared(problem)
        result: dict[str, Any] = {}
        if job["first"] and contestant.compiles:
            result["first_call"], _ = call(contestant, task, 1)
        result["seconds"], answer = call(contestant, task, job["iterations"])
        if job["first"]:
            result["digest"] = digest(problem, task, answer)
        return result


def attempt(worker: Worker, job: dict[str, Any]) -> dict[str, Any]:
    """The result, or the reason for failure."""
    try:
        return worker.answer(job)
    except ImportError as error:
        return {"error": f"not installed ({error.name})"}
    except (MemoryError, RuntimeError) as error:
        memory = isinstance(error, MemoryError) or "memory" in str(error).lower()
        return {"error": "out of memory" if memory else f"{type(error).__name__}: {error}"}


def serve(name: str, memory: int) -> None:
    """Process jobs until stdin ends; `memory` limits the address space, in bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    worker = Worker(name)
    for line in sys.stdin:
        print(json.dumps(attempt(worker, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
