"""Comparisons of libraries, each in its own process with limits on time and memory; their runs alternate."""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks import floor
from benchmarks.peers import CONTESTANTS, OURS, PRECISION
from benchmarks.problem import Problem
from benchmarks.report import emit

PATIENCE = 10.0  # seconds after which a library is not run again on the same task
AGREEMENT = 1e-6  # relative difference allowed between results
REFERENCES = ("numpy-float64", "hmmlearn", "trellis-float64")  # the library whose result is the reference


@dataclass(frozen=True)
class Case:
    """A problem, and the number of EM iterations to run on it."""

    problem: Problem
    iterations: int


CASES = (
    Case(Problem(10, 1000, 200, 20), 10),
    Case(Problem(50, 2000, 50, 1000), 10),
    Case(Problem(256, 4000, 50, 10_000), 2),
    Case(Problem(5, 1, 1_000_000, 20), 2),
)
QUICK = (Case(Problem(10, 1000, 50, 20), 3), Case(Problem(50, 200, 50, 1000), 3), Case(Problem(5, 1, 20_000, 20), 2))


@dataclass
class Track:
    """The runs of one library on one task."""

    runs: list[float] = field(default_factory=list)
    first_call: float | None = None  # with compilation
    digest: float | None = None
    error: str | None = None

    def add(self, answer: dict[str, Any]) -> None:
        self.error = answer.get("error")
        if self.error is None:
            self.runs.append(answer["seconds"])
            self.first_call = answer.get("first_call", self.first_call)
            self.digest = answer.get("digest", self.digest)

    def wants(self, repeats: int) -> bool:
        return self.error is None and len(self.runs) < repeats and sum(self.runs) < PATIENCE

    @property
    def seconds(self) -> float | None:
        return median(self.runs) if self.runs and self.error is None else None


class Runner:
    """A worker process, restarted after a failure."""

    def __init__(self, name: str, memory: int, limit: float) -> None:
        self.name, self.memory, self.limit = name, memory, limit
        self.process: subprocess.Popen[str] | None = None

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The worker's result, or an error if it takes too long or dies."""
        process = self.process or self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self.limit)
        line = process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.stop()
        return {"error": "died, most likely out of memory" if ready else f"over {self.limit:.0f} s"}

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.worker", self.name, str(self.memory)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def options(argv: Sequence[str], limit: float, memory: float = 10.0) -> argparse.Namespace:
    """The shared command line; `limit` and `memory` are the default seconds and GiB of one run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="small problems, three runs: about a minute")
    parser.add_argument("--peers", default="", help="prefixes of names, separated by commas (default: all)")
    parser.add_argument("--repeats", type=int, default=0, help="number of runs; the median is reported (5, quick: 3)")
    parser.add_argument("--limit", type=float, default=limit, help="maximum seconds of one run")
    parser.add_argument("--memory", type=float, default=memory, help="maximum GiB of one library")
    chosen = parser.parse_args(argv)
    chosen.repeats = chosen.repeats or (3 if chosen.quick else 5)
    return chosen


def race_all(bench: str, tasks: Sequence[str], argv: Sequence[str], limit: float) -> None:
    """Run every task of every case, and report each result immediately."""
    chosen = options(argv, limit)
    wanted = tuple(chosen.peers.split(",")) if chosen.peers else ("",)
    names = [name for name in CONTESTANTS if name.startswith("trellis") or name.startswith(wanted)]
    runners = [Runner(name, int(chosen.memory * 2**30), chosen.limit) for name in names]
    machine = floor.measure()
    try:
        for case in QUICK if chosen.quick else CASES:
            for task in tasks:
                tracks = race(runners, case, task, chosen.repeats)
                report(bench, case, task, tracks, machine)
    finally:
        for runner in runners:
            runner.stop()


def race(runners: Sequence[Runner], case: Case, task: str, repeats: int) -> dict[str, Track]:
    """Run the libraries in turn until each has reached its repeats or the time limit, or has failed."""
    job = {"problem": asdict(case.problem), "task": task, "iterations": case.iterations}
    tracks = {runner.name: Track() for runner in runners}
    for turn in range(repeats):
        for runner in runners:
            if tracks[runner.name].wants(repeats):
                tracks[runner.name].add(runner.ask(job | {"first": turn == 0}))
    return tracks


def report(bench: str, case: Case, task: str, tracks: dict[str, Track], machine: floor.Machine) -> None:
    """Report each peer against Trellis in the same precision; for hmmlearn, also in float32 and with the estimator."""
    work = case.problem.num_tokens * (case.iterations if task == "em" else 1)
    truth = next((tracks[name].digest for name in REFERENCES if name in tracks and tracks[name].digest), None)
    pairs = [(name, own) for name in tracks if not name.startswith("trellis") for own in OURS[name] if own in tracks]
    for name, own in pairs:
        peer, ours, precision = tracks[name], tracks[own], PRECISION.get(own, own.removeprefix("trellis-"))
        if ours.seconds is None:
            continue
        lowest = floor.seconds(machine, case.problem, task, precision) * (work / case.problem.num_tokens)
        emit(
            bench=bench, case=case.problem.name, unit="tokens/s",
            metric=f"{task}, estimator" if own in PRECISION else task,
            ours=work / ours.seconds,
            peer=name,
            peers=work / peer.seconds if peer.seconds else peer.error,
            ratio=peer.seconds / ours.seconds if peer.seconds else None,
            precision=precision, iterations=case.iterations if task == "em" else None,
            ours_seconds=ours.seconds, peers_seconds=peer.seconds,
            ours_repeats=len(ours.runs), repeats=len(peer.runs),
            ours_first_call=ours.first_call, peers_first_call=peer.first_call,
            ours_error=difference(ours.digest, truth), peers_error=difference(peer.digest, truth),
            agrees=all((difference(track.digest, truth) or 0.0) <= AGREEMENT for track in (ours, peer)),
            floor_seconds=lowest, times_floor=ours.seconds / lowest, **machine.describe(precision),
        )  # fmt: skip


def difference(found: float | None, truth: float | None) -> float | None:
    """The relative difference."""
    return None if found is None or truth is None else abs(found - truth) / abs(truth)
