"""The linear dynamical system: counting, subspace identification, and EM whose iterations do not see the text."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import numpy as np

from benchmarks.race import options
from benchmarks.report import emit
from trellis.config import DataConfig
from trellis.corpus import load_corpus
from trellis.corpus.moments import Moments, choose_rows, count_moments
from trellis.learning.asos import expect, maximise
from trellis.learning.covariance import Covariances
from trellis.learning.subspace import identify

T = TypeVar("T")
BLOCKS, HORIZON, PRIOR = 4, 7, 20.0
SHARES = (10, 3, 1)  # a tenth, a third and all of the text


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=600.0)
    words, dim, tokens = (5_000, 50, 500_000) if chosen.quick else (30_000, 200, 5_000_000)
    text, source = zipf_text(words, tokens), "zipf"
    if os.environ.get("TRELLIS_DATA"):
        whole = DataConfig(source="text8", max_size=words)
        text, source = np.asarray(load_corpus(whole)["train"].tokens[:tokens]), "text8"
    else:
        print("lds: TRELLIS_DATA is not set, so the text is drawn by Zipf's law.", file=sys.stderr)
    for share in SHARES:
        learn(f"{source}, V={words:,}, h={dim}", text[: len(text) // share], dim, whole=share == 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    emit("lds", f"{source}, V={words:,}, h={dim}", "peak memory", memory, "limit", 8.0, 8.0 / memory, "GiB")


def zipf_text(words: int, tokens: int) -> np.ndarray:
    """Words by their rank's frequency, each likely to be followed by its neighbours."""
    generator = np.random.default_rng(0)
    chances = 1 / np.arange(1, words + 1)
    drawn = generator.choice(words, tokens, p=chances / chances.sum())
    return np.where(generator.random(tokens) < 0.5, drawn, np.roll(drawn, 1) ^ 1) % words


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = perf_counter()
    result = work()
    return perf_counter() - begin, result


def learn(case: str, text: np.ndarray, dim: int, whole: bool) -> None:
    """Seconds of each part; an iteration's against the number of distinct pairs, not of tokens."""
    rows = choose_rows(np.bincount(text))
    seconds, moments = timed(lambda: count_moments(text, rows, 2 * BLOCKS - 1))
    speed = len(text) / seconds
    emit("lds", f"{case}, {len(text):,} tokens", "count", speed, "goal", 1e6, speed / 1e6, "tokens/s")
    covariances = Covariances(moments, PRIOR, PRIOR)
    seconds, starts = timed(lambda: identify(covariances, dim, BLOCKS))
    emit("lds", f"{case}, {len(text):,} tokens", "subspace", seconds, "goal", 120.0, 120.0 / seconds, "s")
    seconds, _ = timed(lambda: maximise(expect(starts["unit"], covariances, HORIZON)))
    per_pair = seconds / moments.pairs * 1e9
    goal = 20.0 if whole else None
    emit(
        "lds", f"{case}, {len(text):,} tokens", "EM iteration", seconds, "goal", goal, goal and goal / seconds, "s",
        pairs=moments.pairs, nanoseconds_per_pair=per_pair, tokens=moments.tokens,
    )  # fmt: skip
    check_margins(moments)


def check_margins(moments: Moments) -> None:
    if any(np.abs(lag.sum(0) - moments.counts).max() > 0 for lag in moments.lags):
        raise SystemExit("The counts have the wrong margins.")
