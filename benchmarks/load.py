"""Busy machines: tokens per CPU-second whatever was imported first, alone and beside two busy processes.

A foreign busy process occupies one core all the time. The fair share of c threads on c cores beside two of them is
c / (c + 2) of the tokens per second that they process alone. About five minutes; the machine should be idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.race import options
from benchmarks.report import emit

FOREIGN = 2
STATES, WORDS, SENTENCES, LENGTH = 50, 1000, 4000, 50
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with its parent
WORK = """
import {first}
import json, logging, sys, time
import numpy as np, torch, trellis
logging.disable()
random = np.random.default_rng(0)
rows = random.integers(2, {words}, ({sentences}, {length}))
text = [" ".join(f"w{{word}}" for word in row[:20]) for row in rows]
make = lambda: trellis.train(text, states={states}, learner="em", epochs=3, device="cpu")
estimator = lambda iterations: trellis.CategoricalHMM({states}, n_iter=iterations, tol=-np.inf, random_state=0)
X, lengths = rows.reshape(-1, 1), [{length}] * {sentences}
model, fitted = make().model, estimator(1).fit(X, lengths)
cases = {{
    "EM": (lambda: estimator(5).fit(X, lengths), 5 * rows.size),
    "score": (lambda: [fitted.score(X, lengths) for _ in range(5)], 5 * rows.size),
    "log_prob": (lambda: model.log_prob(list(rows)), rows.size),
    "posterior": (lambda: model.posterior(list(rows)), rows.size),
    "train": (make, 3 * 20 * {sentences}),
}}
for name, (work, tokens) in cases.items():
    work()
    runs = []
    while len(runs) < {runs}:
        begin, cpu = time.perf_counter(), time.process_time()
        work()
        runs.append((tokens / (time.process_time() - cpu), tokens / (time.perf_counter() - begin)))
    print(json.dumps([name, *max(runs)]), flush=True)
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """A context with other processes that never wait."""
    foreign = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in foreign:
            process.kill()
            process.wait()


def measure(first: str, foreign: int, runs: int) -> dict[str, tuple[float, float]]:
    """Millions of tokens per CPU-second and per second of each case, in a new process."""
    sizes = {"states": STATES, "words": WORDS, "sentences": SENTENCES, "length": LENGTH}
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    with busy(foreign):
        command = [sys.executable, "-c", WORK.format(first=first, runs=runs, **sizes)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (per_cpu / 1e6, per_second / 1e6) for name, per_cpu, per_second in found}


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    runs = 2 if chosen.quick else 5
    cores = len(os.sched_getaffinity(0))
    fair = cores / (cores + FOREIGN)
    situations = [(first, foreign) for first in ("trellis", "torch") for foreign in (0, FOREIGN)]
    found = [{s: measure(*s, runs) for s in situations} for _ in range(1 if chosen.quick else chosen.repeats)]
    for name in found[0][situations[0]]:
        figures = {s: [median(one[s][name][unit] for one in found) for unit in (0, 1)] for s in situations}
        about = f"{STATES} states, {cores} threads"
        for foreign in (0, FOREIGN):
            ours, other = figures["torch", foreign][0], figures["trellis", foreign][0]
            beside = f", beside {foreign} busy processes" * bool(foreign)
            metric = f"{name}, torch imported first{beside}"
            emit("load", about, metric, ours, "trellis first", other, ours / other, "M tokens per CPU-second")
        ours, share = figures["torch", FOREIGN][1], fair * figures["torch", 0][1]
        emit("load", about, f"{name}, beside {FOREIGN} busy", ours, "fair share", share, ours / share, "M tokens/s")
