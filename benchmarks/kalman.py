"""Kalman smoothing of dense observations beside dynamax, pykalman and statsmodels, whole and with gaps."""

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

SIZES = (10, 50, 10_000), (200, 500, 10_000)  # latent, observed, steps
QUICK = ((10, 50, 1_000), (40, 100, 500))
LARGE = 100  # latent dimensions from which on single missing values are left out: every step would keep four matrices
AGREEMENT = 1e-8  # relative to the largest smoothed mean
OURS = "trellis"
METRICS = {"none": "smooth", "steps": "30% of steps missing", "values": "30% of values missing"}


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=300.0)
    wanted = tuple(chosen.peers.split(",")) if chosen.peers else ("",)
    names = [name for name in CONTESTANTS if name == OURS or name.startswith(wanted)]
    with tempfile.TemporaryDirectory() as folder:
        for sizes in QUICK if chosen.quick else SIZES:
            for gaps in GAPS if sizes[0] < LARGE else ("none", "steps"):
                job = {"sizes": sizes, "gaps": gaps, "repeats": chosen.repeats, "patience": PATIENCE}
                job["memory"] = int(chosen.memory * 2**30)
                files = {name: str(Path(folder) / f"{i}.npy") for i, name in enumerate(names)}
                found = {name: ask(job | {"name": name, "file": files[name]}, chosen.limit) for name in names}
                report(sizes, gaps, found, files)


def ask(job: dict[str, Any], limit: float) -> dict[str, Any]:
    """What the contestant's process answers; an error where it takes too long or dies."""
    command = [sys.executable, "-m", "benchmarks.kalman_peers", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"over {limit:.0f} s"}
    return json.loads(done.stdout) if done.stdout.strip() else {"error": "died, most likely out of memory"}


def report(sizes: tuple[int, int, int], gaps: str, found: dict[str, Any], files: dict[str, str]) -> None:
    """One line for each peer: steps per second, and whether its smoothed means are ours."""
    ours = found[OURS].get("seconds")
    for name in [name for name in found if name != OURS]:
        theirs = found[name].get("seconds")
        speeds = (sizes[2] / seconds if seconds else None for seconds in (ours, theirs))
        speed, peers = speeds
        difference = apart(files[OURS], files[name]) if ours and theirs else None
        emit(
            "kalman", f"h={sizes[0]}, p={sizes[1]}, T={sizes[2]:,}", METRICS[gaps], speed, name,
            peers or found[name]["error"], theirs / ours if ours and theirs else None, "steps/s",
            ours_seconds=ours, peers_seconds=theirs, ours_error=found[OURS].get("error"), difference=difference,
            agrees=None if difference is None else difference <= AGREEMENT,
        )  # fmt: skip


def apart(one: str, other: str) -> float:
    ours, theirs = np.load(one), np.load(other)
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())
