"""Kalman smoothing, with and without missing values, against dynamax, pykalman and statsmodels."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kalman_peers import CONTESTANTS, GAPS
from benchmarks.race import PATIENCE, options
from benchmarks.report import emit

LARGE = 100  # latent dimensions from which peers, which store more per step, get only the first steps
SIZES = (10, 50, 10_000), (200, 500, 10_000)  # latent, observed, steps
QUICK = ((10, 50, 1_000), (LARGE, 200, 1_000))
FIRST = 250  # steps
AGREEMENT = 1e-8  # relative to the largest smoothed mean
OURS = "trellis"
METRICS = {"none": "smooth", "steps": "30% of steps missing", "values": "30% of values missing"}


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=300.0, memory=16.0)
    wanted = tuple(chosen.peers.split(",")) if chosen.peers else ("",)
    peers = [name for name in CONTESTANTS if name != OURS and name.startswith(wanted)]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{i}.npy") for i, name in enumerate(CONTESTANTS)}
        for sizes in QUICK if chosen.quick else SIZES:
            first = FIRST if sizes[0] >= LARGE else sizes[2]
            for gaps in GAPS:
                job = {"sizes": sizes, "gaps": gaps, "repeats": chosen.repeats, "patience": PATIENCE}
                job["memory"] = int(chosen.memory * 2**30)
                mine = job | {"name": OURS, "file": files[OURS]}
                ours = ask(mine | {"first": sizes[2]}, chosen.limit)
                begun = ask(mine | {"first": first}, chosen.limit) if first < sizes[2] else ours
                ours["first_seconds"] = begun.get("seconds")
                for name in peers:
                    theirs = ask(job | {"name": name, "file": files[name], "first": first}, chosen.limit)
                    report(sizes, gaps, name, first, ours, theirs, apart(files[OURS], files[name], begun, theirs))


def ask(job: dict[str, Any], limit: float) -> dict[str, Any]:
    """The result from a library's process, or an error if it takes too long or dies."""
    command = [sys.executable, "-m", "benchmarks.kalman_peers", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"over {limit:.0f} s"}
    return json.loads(done.stdout) if done.stdout.strip() else {"error": "died, most likely out of memory"}


def report(
    sizes: tuple[int, int, int], gaps: str, name: str, first: int,
    ours: dict[str, Any], theirs: dict[str, Any], difference: float | None,
) -> None:  # fmt: skip
    """Report steps per second against a peer, which may have run only the first steps, and whether the means agree."""
    runs = (sizes[2], ours), (first, theirs)
    speed, peers = (steps / found["seconds"] if "seconds" in found else None for steps, found in runs)
    emit(
        "kalman", f"h={sizes[0]}, p={sizes[1]}, T={sizes[2]:,}", METRICS[gaps], speed, name, peers or theirs["error"],
        speed / peers if speed and peers else None, "steps/s", ours_seconds=ours.get("seconds"),
        ours_error=ours.get("error"), peers_steps=first, peers_seconds=theirs.get("seconds"),
        ours_seconds_of_these=ours["first_seconds"], difference=difference,
        agrees=None if difference is None else difference <= AGREEMENT,
    )  # fmt: skip


def apart(our_file: str, their_file: str, ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
    """The largest difference between smoothed means, relative to the largest mean."""
    if "error" in theirs or "error" in ours:
        return None
    mine, others = np.load(our_file), np.load(their_file)
    return float(np.abs(mine - others).max() / np.abs(mine).max()) if mine.shape == others.shape else None
