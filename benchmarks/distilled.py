"""A language model guided by several HMMs, such as one trained on the same text and one distilled from the guided
model: perplexity of the sentences, and effective sample size of sequential Monte Carlo."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

import trellis
from benchmarks.keywords import MOST, Texts, beside, judge_of, keyword_sets, rejected, report, satisfied
from benchmarks.report import emit
from trellis.constraints import all_of
from trellis.corpus.load import load_corpus
from trellis.families.hmm.model import HMM
from trellis.models.base import LanguageModel
from trellis.models.chain import ChainModel
from trellis.tasks.lm import data_of

BENCH = "distilled"
SAMPLES = 1000  # sentences of the guided model that the HMMs score
SEED = 10_000  # of these samples; HMMs are not trained on them
LOW, HIGH = 0.025, 0.975  # quantiles of a confidence interval


class Guided:
    """The sentences of a model under the guidance of one HMM, one per set of keywords."""

    def __init__(self, model: LanguageModel, hmm: ChainModel, sets: Sequence[Sequence[str]], particles: int) -> None:
        self.texts: list[list[str] | None] = []
        self.masked: list[list[str] | None] = []
        self.sizes: list[tuple[float, float]] = []  # effective sample size at the end, and the smallest
        self.seconds = 0.0
        for number, words in enumerate(sets):
            guide = trellis.guide(hmm, all_of(*words), most=MOST)
            begun = time.perf_counter()
            self.texts += [model.vocab.split(text) for text in guide.sample(model, 1, seed=number)]
            self.seconds += time.perf_counter() - begun
            if particles:
                found = guide.particles(model, particles, seed=number)
                self.sizes.append((found.effective, found.least_effective))
            guide.alpha = 0.0
            self.masked += [model.vocab.split(text) for text in guide.sample(model, 1, seed=number)]


def mean_interval(values: np.ndarray) -> dict[str, float]:
    """The bootstrap interval of a mean."""
    draw = np.random.default_rng(0)
    means = values[draw.integers(len(values), size=(10_000, len(values)))].mean(1)
    return {"low": float(np.quantile(means, LOW)), "high": float(np.quantile(means, HIGH))}


def closeness(model: LanguageModel, hmm: ChainModel) -> float:
    """The perplexity of the guided model's own sentences under an HMM."""
    rows = [model.vocab.split(text) for text in model.sample(SAMPLES, 100, SEED)]
    return float(np.exp(-np.sum(hmm.log_prob(rows)) / sum(len(row) + 1 for row in rows)))


def show(name: str, sets: list[list[str]], texts: Texts, judges: Sequence[LanguageModel]) -> list[np.ndarray]:
    """How many sentences satisfy their constraints, and their perplexities."""
    kept = satisfied(sets, texts)
    count = sum(words is not None for words in kept)
    emit(BENCH, name, "satisfied", count, "all", len(sets), count / len(sets), "sentences")
    return [report(BENCH, name, judge, kept) for judge in judges]


@torch.no_grad()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks distilled", description=__doc__)
    parser.add_argument("--guided", help="the language model that is guided, such as an LSTM")
    parser.add_argument("--guides", nargs="+", default=["demo"], help="HMMs of the same vocabulary")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--particles", type=int, default=32)
    parser.add_argument("--rejection", action="store_true", help="also: unguided samples that contain the keywords")
    parser.add_argument("--quick", action="store_true", help="10 sets")
    options = parser.parse_args(argv)
    hmms: dict[str, ChainModel] = {name: trellis.load(name, HMM, "cpu") for name in options.guides}
    first = next(iter(hmms.values()))
    corpus = load_corpus(data_of(first), vocab=first.vocab)
    ngram = judge_of(first, corpus, "ngram", "cpu")
    model = judge_of(first, corpus, options.guided, "cpu") if options.guided else ngram
    judges = [model, ngram] if model is not ngram else [ngram]
    sets = keyword_sets(first, corpus["valid"].tokens, 10 if options.quick else options.sets, 2)
    compare(model, hmms, sets, judges, options.particles)
    if options.rejection:
        show("rejection", sets, rejected(model, sets), judges)


def compare(
    model: LanguageModel,
    hmms: dict[str, ChainModel],
    sets: list[list[str]],
    judges: Sequence[LanguageModel],
    particles: int,
) -> None:
    """Sentences for every set of keywords, with each HMM as the guide, and without one."""
    scored: dict[str, list[np.ndarray]] = {}
    for name, hmm in hmms.items():
        emit(BENCH, name, f"perplexity of sentences of {model.name}", closeness(model, hmm), "none", None, None, "")
        found = Guided(model, hmm, sets, particles)
        scored[f"guided by {name}"] = show(f"guided by {name}", sets, found.texts, judges)
        emit(BENCH, f"guided by {name}", "time", found.seconds / len(sets), "none", None, None, "s per sentence")
        for size, metric in zip(np.array(found.sizes).T, ("effective sample size", "smallest"), strict=False):
            of = f"of {particles}"
            emit(BENCH, f"guided by {name}", metric, float(size.mean()), "none", None, None, of, **mean_interval(size))
        if len(scored) == 1:
            masked = show("masking", sets, found.masked, judges)
    scored["masking"] = masked
    last, last_sums = list(scored.items())[len(hmms) - 1]
    for other, theirs in scored.items():
        for judge, one, two in zip(judges, theirs, last_sums, strict=True):
            if other != last:
                beside(BENCH, f"{last} less {other}", judge, one, two)
