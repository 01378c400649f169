"""`python -m mutants`: put small bugs into the package, one at a time, and print which of them the tests notice.

The first run records which tests execute which lines (`--map`), and later runs add new tests and tests of changed
files to this map. When the lines of the package have moved, `--remap` records it again."""

from __future__ import annotations

import argparse
import difflib
import gc
import hashlib
import json
import os
import re
import sys
import time
import zlib
from collections import Counter, defaultdict
from functools import cache, partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest

from mutants import trial
from mutants.changes import PLACES, Mutant, files, shuffled
from mutants.covering import Covering
from mutants.session import OPTIONS, Session
from mutants.swapping import load

PACKAGE = Path("src/trellis").resolve()
JUDGED = Path(__file__).parent / "judged.jsonl"  # mutants that no test can notice, or none should: file, diff, why
LEFT_OUT = {"distributed", "experiments", "explore", "extending", "report"}  # tests in other processes, or slow ones
ALSO = {  # tests that call mutated modules through others; all other tests import them
    "test_conditioned",
    "test_dropout",
    "test_hooks",
    "test_public_inputs",
    "test_topology",
    "test_variational_hmm",
    "test_verbs",
}
IMPORTS = re.compile("trellis.(?:" + "|".join(place.removesuffix(".py").replace("/", ".") for place in PLACES) + ")")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="size of the sample (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument("--only", help="mutate only files whose path contains this text")
    parser.add_argument("--again", type=Path, help="try the mutants that survived according to this file of results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests per mutant, the fastest first")
    parser.add_argument("--slow", type=float, default=5.0, help="leave out tests that take more seconds than this")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no mutant after so many seconds")
    parser.add_argument("--map", type=Path, default=Path("runs/mutants.map.jsonl"), help="which tests run which lines")
    parser.add_argument("--remap", action="store_true", help="record the map again")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    files = sorted(Path("tests").rglob("test_*.py"))
    files = [file for file in files if not LEFT_OUT.intersection(file.parts)]
    tests = [str(file) for file in files if file.stem in ALSO or IMPORTS.search(file.read_text())]
    sys.exit(pytest.main([*OPTIONS, *tests], plugins=[Session(lambda session: work(session, options))]))


def work(session: Session, options: argparse.Namespace) -> None:
    """In a session that has collected the tests: record the map where there is none, and try the mutants."""
    functions = load(PACKAGE, files(PACKAGE))
    if not functions:
        sys.exit(f"The tests do not import the package in {PACKAGE}; set PYTHONPATH=src.")
    gc.freeze()
    if options.remap:
        options.map.unlink(missing_ok=True)
    record(session, options)
    covering = Covering(options.map, session.items)
    trials = trial.Trials(PACKAGE, session, functions, covering.seconds)
    begun, results = time.monotonic(), Counter[str]()
    with trial.temporary() as controls:
        calls = (partial(attempt, trials, mutant, chosen(mutant, covering, options.budget), controls)
                 for mutant in selected(options))  # fmt: skip
        in_time = takewhile(lambda call: time.monotonic() - begun < options.limit, calls)
        for result in trial.results_of(in_time, options.jobs):
            print(json.dumps(result), file=sys.__stdout__, flush=True)
            results[result["result"]] += 1
    tried = sum(results.values()) - results["equivalent"]
    noticed = results["killed"] + results["timeout"]
    summary = f"{noticed} of {tried} mutants noticed ({noticed / max(tried, 1):.1%}): {dict(results)}"
    print(summary, file=sys.__stderr__)


def record(session: Session, options: argparse.Namespace) -> None:
    """Run the tests of files that are new or have changed, every file in a process of its own, and add the lines that
    each test executes to the map."""
    options.map.parent.mkdir(parents=True, exist_ok=True)
    options.map.touch()
    rows = [row for row in options.map.read_text().splitlines() if is_current(json.loads(row))]
    options.map.write_text("".join(row + "\n" for row in rows))
    known = {json.loads(row)["test"] for row in rows}
    by_file = defaultdict[str, list[str]](list)
    for test in session.items:
        if test not in known:
            by_file[test.partition("::")[0]].append(test)

    def write(tests: list[str]) -> None:
        for found in session.record(tests, PACKAGE, files(PACKAGE), options.slow):
            with options.map.open("a") as file:
                file.write(json.dumps(found | {"version": version(found["test"])}) + "\n")

    nearest = sorted(by_file, key=lambda file: -len(IMPORTS.findall(Path(file).read_text())))
    for _ in trial.results_of((partial(write, by_file[file]) for file in nearest), options.jobs):
        pass


def is_current(row: dict[str, Any]) -> bool:
    return row.get("version") == version(row["test"])


@cache
def version(test: str) -> int:
    """A checksum of the file of a test; 0 if it is gone."""
    file = Path(test.partition("::")[0])
    return zlib.crc32(file.read_bytes()) if file.exists() else 0


def selected(options: argparse.Namespace) -> list[Mutant]:
    if options.again:
        found = [json.loads(line) for line in options.again.read_text().splitlines() if line.startswith("{")]
        return [Mutant(**one["mutant"]) for one in found if one["result"] in ("survived", "uncovered")]
    every = (mutant for mutant in shuffled(PACKAGE, options.seed) if not options.only or options.only in mutant.file)
    return list(islice(every, options.number))


def chosen(mutant: Mutant, covering: Covering, budget: float) -> list[str]:
    """The tests for a mutant: those that execute its lines, the fastest first, as far as the budget goes."""
    source = (PACKAGE / mutant.file).read_bytes()
    lines = range(mutant.first, mutant.line + source[mutant.start : mutant.end].count(b"\n") + 1)
    tests, seconds = list[str](), 0.0
    for test in covering.tests(mutant.file, lines, mutant.imported):
        seconds += covering.seconds[test]
        if tests and seconds > budget:
            break
        tests.append(test)
    return tests


def attempt(trials: trial.Trials, mutant: Mutant, tests: list[str], controls: Path) -> dict[str, Any]:
    """Try a mutant; tests that fail without it as well are left out."""
    if why := judged().get((mutant.file, difference(mutant))):
        verdict = trial.Verdict("equivalent", 0.0, why)
    elif not tests:
        verdict = trial.Verdict("uncovered", 0.0)
    else:
        verdict = trials.attempt(mutant, tests)
    if verdict.result == "killed" and fails_anyway(trials, verdict.by, controls):
        return attempt(trials, mutant, [test for test in tests if test != verdict.by], controls)
    about = {"file": mutant.file, "line": mutant.line, "kind": mutant.kind, "diff": difference(mutant)}
    found = {"result": verdict.result, "by": verdict.by, "tests": len(tests), "seconds": round(verdict.seconds, 2)}
    return about | found | {"mutant": vars(mutant)}


def fails_anyway(trials: trial.Trials, test: str, controls: Path) -> bool:
    """Whether a test fails without a mutant as well; tried once."""
    if test not in trials.session.items:  # the process itself died
        return False
    known = controls / hashlib.sha256(test.encode()).hexdigest()
    if not known.exists():
        unfinished = known.with_suffix(f".{os.getpid()}")
        unfinished.write_text(trials.attempt(None, [test]).result)
        unfinished.rename(known)
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
