"""Factorial HMMs: an epoch of a text, and how the E-step grows with tokens, layers, states and words.

Time should be O(T M K V), and memory should not grow with T. If K is small, most of the work is in passes over [T, V]
that do not depend on K."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.growth import exponent
from benchmarks.large_hmm import fresh_memory, peak_memory, settle
from benchmarks.report import emit
from trellis.corpus import Vocabulary
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner
from trellis.types import Batch

BENCH = "fhmm"
USUAL = {"tokens": 2000, "layers": 4, "states": 8, "words": 4000}
QUICK = {"tokens": 500, "layers": 2, "states": 4, "words": 500}
FACTORS = {"tokens": (1, 2, 4, 8), "layers": (1, 2, 4, 8), "states": (1, 4, 16, 64), "words": (1, 2, 4, 8)}
LENGTH, SWEEPS = 25, 4
BATCH, LAYERS, STATES = 8192, 5, 10


class Text(NamedTuple):
    """The size of a text, and the target for the seconds of an epoch."""

    name: str
    tokens: int
    words: int
    bar: float


TEXTS = {  # on two cores; on a GPU
    "cpu": Text("PTB", 929_589, 10_000, 900.0),
    "cuda": Text("WikiText-2", 2_088_628, 33_278, 120.0),
}


def model_of(layers: int, states: int, words: int, device: torch.device) -> FHMM:
    names = ["<eos>", *(f"w{n}" for n in range(words - 1))]
    counts = (1e6 / torch.arange(5.0, words + 5)).long().tolist()  # as frequent as in a language (Zipf)
    return FHMM.new(Vocabulary(names, counts), (states,) * layers).to(device)


def text(tokens: int, words: int, device: torch.device) -> Batch:
    rows = max(1, tokens // LENGTH)
    drawn = torch.randint(words, (rows, LENGTH), generator=torch.Generator().manual_seed(0))
    return Batch(drawn, torch.full((rows,), LENGTH), torch.ones(rows, dtype=torch.bool), True, True).to(device)


def seconds_of(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The seconds of the fastest of several calls, after a warm-up call."""
    work()
    times = []
    for _ in range(repeats):
        settle(device)
        begun = time.perf_counter()
        work()
        settle(device)
        times.append(time.perf_counter() - begun)
    return min(times)


def grow(usual: dict[str, int], repeats: int, device: torch.device) -> None:
    """Vary one size at a time; for tokens, which come first, also report the peak memory."""
    for name in usual:
        sizes = [usual[name] * factor for factor in FACTORS[name]]
        times, memories = [], []
        for size in sizes:
            given: dict[str, Any] = usual | {name: size}
            model = model_of(given["layers"], given["states"], given["words"], device)
            batch = text(given["tokens"], given["words"], torch.device("cpu"))
            fresh_memory(device)
            times.append(seconds_of(partial(model.infer, batch, SWEEPS), repeats, device))
            memories.append(peak_memory(device) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        fitted = exponent(sizes, times)
        emit(BENCH, f"E-step, {name}", "exponent of time", fitted, "theory", 1.0, 1.0 / fitted, "", sizes=sizes,
             seconds=times, last=exponent(sizes[-2:], times[-2:]))  # fmt: skip
        if name == "tokens":
            emit(BENCH, f"E-step, {FACTORS[name][-1]} times the tokens", "memory", memories[-1], "once the tokens",
                 memories[0], memories[0] / memories[-1], "GB")  # fmt: skip


def epoch(repeats: int, device: torch.device) -> None:
    """The time of an epoch of stepwise EM, extrapolated from a few steps on one batch."""
    about = TEXTS[device.type]
    learner = StepwiseVariationalLearner(model_of(LAYERS, STATES, about.words, device), FHMMTrainConfig(sweeps=SWEEPS))
    batch = text(BATCH, about.words, torch.device("cpu"))
    seconds = seconds_of(lambda: learner.step(batch), repeats, device) * about.tokens / batch.tokens.numel()
    emit(BENCH, f"{LAYERS} x {STATES}, {about.words} words, {device.type}", f"epoch of {about.name}", seconds, "bar",
         about.bar, about.bar / seconds, "s", tokens_per_second=about.tokens / seconds, measured=BATCH)  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fhmm", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small problems, no epoch")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    grow(QUICK if options.quick else USUAL, options.repeats, device)
    if not options.quick:
        epoch(options.repeats, device)
