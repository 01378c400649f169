"""The first seconds: importing, the first fit, and calls on a few symbols, beside hmmlearn; CPU seconds and memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from statistics import median

from benchmarks.race import options
from benchmarks.report import emit

SYMBOLS, STATES, ITERATIONS, CALLS = 30, 3, 10, 300
OURS, PEER = "trellis", "hmmlearn.hmm"
MIDDLE, COMPILED = 1000, 10_000  # symbols: within, and beyond the engine of small problems

DATA = "import numpy as np; X = np.random.RandomState(0).randint(0, 5, ({symbols}, 1)); "
MODEL = "CategoricalHMM({states}, n_iter={iterations}, tol=-np.inf, random_state=0)"
FIRST_FIT = "from {package} import CategoricalHMM; " + DATA + MODEL + ".fit(X)"
REPEATED = """
import json, logging, statistics, sys, time
logging.disable()
from {package} import CategoricalHMM
{data}
model = {model}
model.fit(X)
work = lambda: {call}
work()
seconds = []
for _ in range({calls}):
    begin = time.process_time()
    work()
    seconds.append(time.process_time() - begin)
print(json.dumps(statistics.median(seconds)))
"""

LAUNCH = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss, done.stdout]))
"""


@dataclass(frozen=True)
class Used:
    """What a process used."""

    seconds: float  # of CPU, its threads included
    memory: float  # MiB, the peak
    output: str


def run(*command: str) -> Used:
    """Run Python with an empty cache of compiled kernels; the memory is that of a child of a small process."""
    with tempfile.TemporaryDirectory() as cache:
        launcher = [sys.executable, "-c", LAUNCH, sys.executable, *command]
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        done = subprocess.run(launcher, env=environment, capture_output=True, text=True, check=True)
    seconds, memory, output = json.loads(done.stdout)
    return Used(seconds, memory / 1024, output)


def middle(runs: list[Used]) -> tuple[float, float]:
    return median(one.seconds for one in runs), median(one.memory for one in runs)


def report(metric: str, ours: list[str], peers: list[str] | None, repeats: int) -> None:
    """Compare two commands, run in turn; without a peer, the figure stands alone."""
    mine, theirs = [], []
    for _ in range(repeats):
        mine.append(run(*ours))
        theirs += [run(*peers)] if peers else []
    (seconds, memory), (peer_seconds, peer_memory) = middle(mine), middle(theirs) if theirs else (None, None)
    for unit, own, other in (("CPU s", seconds, peer_seconds), ("MiB", memory, peer_memory)):
        ratio = other / own if other else None
        emit("start", "process", metric, own, "hmmlearn" if peers else "-", other, ratio, unit, repeats=repeats)


def report_calls(metric: str, call: str, repeats: int) -> None:
    """Compare one call on a few symbols, repeated within a process."""
    model = MODEL.format(states=STATES, iterations=ITERATIONS)
    settings = {"data": DATA.format(symbols=SYMBOLS), "model": model, "calls": CALLS, "call": call.format(model=model)}
    found: dict[str, list[float]] = {OURS: [], PEER: []}
    for _ in range(repeats):
        for package, results in found.items():
            results.append(1e3 * json.loads(run("-c", REPEATED.format(package=package, **settings)).output))
    own, other = median(found[OURS]), median(found[PEER])
    case = f"{SYMBOLS} symbols, {STATES} states"
    emit("start", case, metric, own, "hmmlearn", other, other / own, "CPU ms", calls=CALLS, repeats=repeats)


def first_fit(package: str, symbols: int) -> list[str]:
    return ["-c", FIRST_FIT.format(package=package, symbols=symbols, states=STATES, iterations=ITERATIONS)]


def main(argv: list[str]) -> None:
    repeats = options(argv, limit=60.0).repeats
    if importlib.util.find_spec("hmmlearn") is None:
        print("start: skipped, since hmmlearn is not installed.", file=sys.stderr)
        return
    report("trellis --help", ["-m", "trellis", "--help"], None, repeats)
    report("import the package", ["-c", "import trellis"], ["-c", "import hmmlearn"], repeats)
    report("import torch and scikit-learn", ["-c", "import torch, sklearn.cluster"], None, repeats)
    imports = ["-c", f"from {OURS} import CategoricalHMM"], ["-c", f"from {PEER} import CategoricalHMM"]
    report("import CategoricalHMM", *imports, repeats)
    for symbols in (SYMBOLS, MIDDLE, COMPILED):
        metric = f"first fit, {symbols} symbols"
        report(metric, first_fit(OURS, symbols), first_fit(PEER, symbols), repeats)
    for metric, call in (
        ("fit", "{model}.fit(X)"),
        ("score", "model.score(X)"),
        ("predict", "model.predict(X)"),
        ("predict_proba", "model.predict_proba(X)"),
    ):
        report_calls(metric, call, repeats)
