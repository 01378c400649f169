"""hmmlearn's own tests and examples, with only its modules `hmm` and `vhmm` replaced by ours: how many pass.

    python -m benchmarks hmmlearn-suite --source hmmlearn-0.3.3     # the unpacked source distribution

A copy of the installed package is made, with the tests of the source distribution and two modules that import
`trellis.hmm` and `trellis.vhmm`. Every fit and every score must enter our inference, or its test fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import emit

REPLACED = ("hmm", "vhmm")
EXPECTED = {
    "test_gaussian_hmm.py::TestGaussianHMMWithSphericalCovars::test_underflow_from_scaling[scaling]": (
        "expects scaled arithmetic to fail on an outlier; ours is repeated in log space"
    )
}
CONFTEST = """
import json
import os
from functools import wraps

import numpy as np
import pytest

from trellis import engines, hmm, vhmm
from trellis.kernels.optional import installed

np.random.seed(int(os.environ.get("HMMLEARN_SEED", "0")))
entered, called, outcomes = [0], [0], {}


def counting(function):
    @wraps(function)
    def wrapped(*args, **options):
        entered[0] += 1
        return function(*args, **options)
    return wrapped


for name in ("score", "filter", "smooth", "expect", "viterbi"):
    setattr(engines, name, counting(getattr(engines, name)))
if (small := installed("kernels.scan.banded")) is not None:  # small problems, which estimators solve without an engine
    small.Run.__init__, small.viterbi = counting(small.Run.__init__), counting(small.viterbi)
if (fused := installed("kernels.scan.fused")) is not None:  # their E-steps of a few long sequences
    fused.Steps.expect = counting(fused.Steps.expect)


def watched(method):
    @wraps(method)
    def call(self, *args, **options):
        before = entered[0]
        found = method(self, *args, **options)
        called[0] += 1
        assert entered[0] > before or (method.__name__ == "fit" and not self.n_iter), f"{method.__name__} ran elsewhere"
        return found
    return call


for module in (hmm, vhmm):
    for name in module.__all__:
        kind = getattr(module, name)
        for method in ("fit", "score", "score_samples", "decode", "predict", "predict_proba"):
            if hasattr(kind, method):
                setattr(kind, method, watched(getattr(kind, method)))


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        expected = hasattr(report, "wasxfail")
        message = str(report.longrepr).splitlines()[-1] if report.outcome == "failed" else ""
        outcomes[report.nodeid] = ["passed" if expected else report.outcome, message]


def pytest_sessionfinish(session):
    with open(os.environ["OUTCOMES"], "w") as file:
        json.dump({"tests": outcomes, "calls": called[0], "entered": entered[0]}, file)
"""


def shadow(source: Path, folder: Path) -> Path:
    """A package `hmmlearn` in which `hmm` and `vhmm` are ours, with the tests of the source distribution."""
    found = importlib.util.find_spec("hmmlearn")
    assert found is not None
    assert found.origin is not None
    package, tests = folder / "hmmlearn", source / "src" / "hmmlearn" / "tests"
    shutil.copytree(Path(found.origin).parent, package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    shutil.copytree(tests if tests.is_dir() else source / "tests", package / "tests")
    for name in REPLACED:
        (package / f"{name}.py").write_text(f"from trellis.{name} import *\n")
    (package / "tests" / "conftest.py").write_text(CONFTEST)
    return package


def run_tests(package: Path, chosen: list[str]) -> dict[str, dict[str, list[str]]]:
    """The outcome and message of every test, and the calls that the spy has seen."""
    outcomes = package.parent / "outcomes.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=line",
        "-W",
        "error",
    ]
    command += ["-W", "ignore::DeprecationWarning", "-W", "ignore:underflow", "--rootdir", str(package.parent)]
    environment = os.environ | {"OUTCOMES": str(outcomes), "PYTHONPATH": search_path(package)}
    done = subprocess.run([*command, str(package / "tests"), *chosen], env=environment, capture_output=True, text=True)
    if not outcomes.exists():
        sys.exit(done.stdout + done.stderr)
    return json.loads(outcomes.read_text())


def search_path(package: Path) -> str:
    """Our sources, and the copy of hmmlearn before the installed one."""
    import trellis

    return os.pathsep.join([str(package.parent), str(Path(trellis.__file__).parents[1])])


def run_examples(source: Path, package: Path) -> dict[str, str]:
    """The examples of the gallery: the last line of stderr if one fails."""
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": search_path(package)}
    found = {}
    for example in sorted((source / "examples").glob("*.py")):
        command = [sys.executable, "-W", "ignore", str(example)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        found[example.name] = "" if done.returncode == 0 else (done.stderr.splitlines() or ["failed"])[-1]
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hmmlearn-suite")
    parser.add_argument("--source", type=Path, help="unpacked source distribution (default: the installed package)")
    parser.add_argument("--no-examples", action="store_true")
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    chosen, more = parser.parse_known_args(argv)  # more: for pytest, such as -k gmm
    spec = importlib.util.find_spec("hmmlearn")
    if spec is None or spec.origin is None:
        print("hmmlearn-suite: skipped, since hmmlearn is not installed.", file=sys.stderr)
        return
    source = chosen.source or Path(spec.origin).parent
    with tempfile.TemporaryDirectory() as folder:
        package = shadow(source, Path(folder))
        result = run_tests(package, more)
        examples = {} if chosen.no_examples else run_examples(source, package)
    tests = result["tests"]
    failed = {name.split("tests/")[-1]: message for name, (outcome, message) in tests.items() if outcome == "failed"}
    for name, message in failed.items():
        print(f"{name}: {EXPECTED.get(name, message)}", file=sys.stderr)
    for name, message in examples.items():
        print(f"{name}: {message or 'runs'}", file=sys.stderr)
    passed, total = len(tests) - len(failed), len(tests)
    emit("hmmlearn-suite", "tests", "passed", passed, "hmmlearn", total, passed / total, "tests",
         unexpected=sorted(set(failed) - set(EXPECTED)), calls=result["calls"], entered=result["entered"])  # fmt: skip
    if examples:
        runs = sum(not message for message in examples.values())
        emit("hmmlearn-suite", "examples", "run", runs, "hmmlearn", len(examples), runs / len(examples), "examples")
