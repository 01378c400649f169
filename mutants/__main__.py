"""`python -m mutants`: put small bugs into the package, one at a time, and print which of them the tests notice.

The first run records which tests execute which lines (`--map`, made anew with `--remap`)."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mutants import trial
from mutants.changes import Mutant, sample
from mutants.covering import Covering

PACKAGE = Path("src/trellis").resolve()
JUDGED = Path(__file__).parent / "judged.jsonl"  # mutants that no test can notice, or none should: file, diff, why
LEFT_OUT = {"experiments", "report"}  # folders of tests that run nothing which is mutated, or only slowly
Job = tuple[Mutant, list[str], float]  # a mutant, its tests and their duration


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="size of the sample (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument("--only", help="mutate only files whose path contains this text")
    parser.add_argument("--again", type=Path, help="try the mutants that survived according to this file of results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests per mutant, the fastest first")
    parser.add_argument("--limit", type=float, help="begin no mutant after so many seconds")
    parser.add_argument("--map", type=Path, default=Path("runs/mutants.map.jsonl"), help="which tests run which lines")
    parser.add_argument("--remap", action="store_true", help="record the map again")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.remap or not options.map.exists():
        record(options.map, options.jobs)
    covering = Covering(options.map)
    jobs = [chosen(mutant, covering, options.budget) for mutant in selected(options)]
    results = Counter[str]()
    for result in attempts(jobs, options.jobs, options.limit):
        print(json.dumps(result), flush=True)
        results[result["result"]] += 1
    tried = sum(results.values()) - results["equivalent"]
    noticed = results["killed"] + results["timeout"]
    print(f"{noticed} of {tried} mutants noticed ({noticed / max(tried, 1):.1%}): {dict(results)}", file=sys.stderr)


def record(path: Path, jobs: int) -> None:
    """Run every test file once, each in a process of its own, and write down the lines that each test executes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    tests = sorted(file for file in Path("tests").rglob("test_*.py") if file.parts[1] not in LEFT_OUT)
    environment = os.environ | {"MUTANTS_MAP": str(path.resolve())}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.covering", "-p", "no:cacheprovider"]
    running: list[subprocess.Popen[bytes]] = []
    for file in tests:
        while len(running) >= jobs:
            time.sleep(0.1)
            running = [process for process in running if process.poll() is None]
        running.append(subprocess.Popen([*command, str(file)], env=environment, stdout=subprocess.DEVNULL))
    for process in running:
        process.wait()


def selected(options: argparse.Namespace) -> list[Mutant]:
    if options.again:
        found = [json.loads(line) for line in options.again.read_text().splitlines()]
        return [Mutant(**one["mutant"]) for one in found if one["result"] in ("survived", "uncovered")]
    everything = sample(PACKAGE, options.number if not options.only else sys.maxsize, options.seed)
    return [mutant for mutant in everything if not options.only or options.only in mutant.file][: options.number]


def chosen(mutant: Mutant, covering: Covering, budget: float) -> Job:
    """The tests for a mutant: those that execute its lines, the fastest first, as far as the budget goes."""
    source = (PACKAGE / mutant.file).read_bytes()
    lines = range(mutant.first, mutant.line + source[mutant.start : mutant.end].count(b"\n") + 1)
    tests, seconds = list[str](), 0.0
    for test in covering.tests(mutant.file, lines, mutant.imported):
        if tests and seconds + covering.seconds[test] > budget:
            break
        tests.append(test)
        seconds += covering.seconds[test]
    return mutant, tests, seconds


def attempts(jobs: list[Job], processes: int, limit: float | None) -> Iterator[dict[str, Any]]:
    """Results in the order in which they arrive."""
    until = time.monotonic() + limit if limit else float("inf")
    with tempfile.TemporaryDirectory() as folder, get_context("fork").Pool(processes, trial.preload) as pool:
        for result in pool.imap_unordered(_attempt, [(job, until, Path(folder)) for job in jobs]):
            if result is not None:
                yield result


def _attempt(task: tuple[Job, float, Path]) -> dict[str, Any] | None:
    (mutant, tests, seconds), until, controls = task
    if time.monotonic() > until:
        return None
    if why := judged().get((mutant.file, difference(mutant))):
        verdict = trial.Verdict("equivalent", 0.0, why)
    elif not tests:
        verdict = trial.Verdict("uncovered", 0.0)
    else:
        verdict = trial.attempt(PACKAGE, mutant, tests, seconds)
    if verdict.result == "killed" and fails_anyway(verdict.by, controls):
        others = [test for test in tests if not test.startswith(verdict.by)]
        return _attempt(((mutant, others, seconds), until, controls))
    about = {"file": mutant.file, "line": mutant.line, "kind": mutant.kind, "diff": difference(mutant)}
    found = {"result": verdict.result, "by": verdict.by, "tests": len(tests), "seconds": round(verdict.seconds, 2)}
    return about | found | {"mutant": vars(mutant)}


def fails_anyway(test: str, controls: Path) -> bool:
    """Whether a test, or the import of a file of tests, fails without a mutant as well; tried once."""
    if ".py" not in test:  # the process itself died
        return False
    known = controls / hashlib.sha256(test.encode()).hexdigest()
    if not known.exists():
        partial = known.with_suffix(f".{os.getpid()}")
        partial.write_text(trial.attempt(PACKAGE, None, [test], 60.0).result)
        partial.rename(known)
    return known.read_text() != "survived"


@cache
def judged() -> dict[tuple[str, str], str]:
    """Why a mutant survives, by its file and diff."""
    found = [json.loads(line) for line in JUDGED.read_text().splitlines()]
    return {(one["file"], one["diff"]): one["why"] for one in found}


def difference(mutant: Mutant) -> str:
    """The changed lines, as - and +."""
    source = (PACKAGE / mutant.file).read_bytes()
    old, new = (text.decode().splitlines() for text in (source, mutant.applied(source)))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[3:]
    return "\n".join(line[0] + line[1:].strip() for line in lines)


if __name__ == "__main__":
    main()
