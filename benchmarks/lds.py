"""Linear dynamical systems: counting, subspace identification, an EM iteration, and a whole fit."""

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
from trellis.families.lds.asos import expect, maximise
from trellis.families.lds.config import LDSConfig
from trellis.families.lds.learning import count_text, fit_lds, lagged_covariances
from trellis.families.lds.subspace import identify

T = TypeVar("T")
BLOCKS, HORIZON = 4, 7
SHARES = (10, 3, 1)  # a tenth, a third and all of the text
ITERATIONS = 10  # EM iterations of the whole fit
GOALS = {"count": 1e6, "subspace": 120.0, "EM iteration": 20.0, "peak memory": 8.0, "fit": 300.0}


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=600.0)
    words, dim, tokens = (5_000, 50, 500_000) if chosen.quick else (30_000, 200, 5_000_000)
    named = bool(os.environ.get("TRELLIS_DATA"))
    if not named:
        print("lds: TRELLIS_DATA is not set; using random text that follows Zipf's law.", file=sys.stderr)
    text = text8(words)[:tokens] if named else zipf_text(words, tokens)
    case = f"{'text8' if named else 'zipf'}, V={words:,}, h={dim}"
    for share in SHARES:
        learn(case, text[: len(text) // share], dim, whole=share == 1)
    memory(case)
    if named:
        fit_ptb(dim=50 if chosen.quick else 300)
    if chosen.quick:
        return
    if named:
        text = text8(0)[:tokens]
        learn(case := f"text8, all {len(np.unique(text)):,} types, h={dim}", text, dim, whole=False)
        memory(case)
    learn(case := "zipf, V=200,000, h=100", zipf_text(200_000, 20_000_000), 100, whole=False)
    memory(case)


def text8(words: int) -> np.ndarray:
    """The training text of text8 with this many words (0: all)."""
    config = DataConfig(source="text8", max_size=words, min_count=1 if not words else None, test_fraction=0.0)
    return np.asarray(load_corpus(config)["train"].tokens)


def zipf_text(words: int, tokens: int) -> np.ndarray:
    """Random words that follow Zipf's law; each is likely to be followed by words of similar rank."""
    generator = np.random.default_rng(0)
    chances = 1 / np.arange(1, words + 1)
    drawn = generator.choice(words, tokens, p=chances / chances.sum())
    return np.where(generator.random(tokens) < 0.5, drawn, np.roll(drawn, 1) ^ 1) % words


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = perf_counter()
    result = work()
    return perf_counter() - begin, result


def say(case: str, metric: str, value: float, unit: str, goal: bool = True, **more: float) -> None:
    """Report a figure and its target: speeds should be above it, everything else below."""
    wanted = GOALS[metric] if goal else None
    ratio = wanted and (value / wanted if unit == "tokens/s" else wanted / value)
    emit("lds", case, metric, value, "goal", wanted, ratio, unit, **more)


def learn(case: str, text: np.ndarray, dim: int, whole: bool) -> None:
    """Report the seconds of each part, with targets if `whole`; an iteration depends on distinct pairs, not tokens."""
    case, rows = f"{case}, {len(text):,} tokens", choose_rows(np.bincount(text))
    seconds, moments = timed(lambda: count_moments(text, rows, 2 * BLOCKS - 1))
    say(case, "count", len(text) / seconds, "tokens/s")
    check_margins(moments)
    covariances = lagged_covariances(moments, LDSConfig())
    seconds, starts = timed(lambda: identify(covariances, dim, BLOCKS))
    say(case, "subspace", seconds, "s", whole)
    seconds, _ = timed(lambda: maximise(expect(starts["unit"], covariances, HORIZON)))
    per_pair = seconds / moments.pairs * 1e9
    more = {"pairs": moments.pairs, "nanoseconds_per_pair": per_pair, "tokens": moments.tokens}
    say(case, "EM iteration", seconds, "s", whole, **more)


def memory(case: str) -> None:
    """Report the peak memory of the process so far; cases are in increasing order."""
    say(case, "peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "GiB")


def fit_ptb(dim: int) -> None:
    """Time a whole fit to the Penn Treebank."""
    corpus = load_corpus(DataConfig(source="ptb"))

    def fit() -> None:
        fit_lds(corpus.vocab, count_text(corpus.vocab, corpus["train"], BLOCKS, HORIZON), dim, ITERATIONS)

    seconds, _ = timed(fit)
    say(f"ptb, h={dim}, {ITERATIONS} iterations", "fit", seconds, "s")


def check_margins(moments: Moments) -> None:
    if any(np.abs(lag.sum(0) - moments.counts).max() > 0 for lag in moments.lags):
        raise SystemExit("The counts have the wrong marginals.")
