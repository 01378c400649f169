"""Sentences from keywords: how many contain them, and their perplexity under other models, beside masking (tokens are
excluded only where the constraint could not be satisfied any more) and rejection (unconstrained samples that happen to
contain the keywords)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import trellis
from benchmarks.report import emit
from trellis.constraints import all_of
from trellis.corpus.load import load_corpus
from trellis.families.hmm.model import HMM
from trellis.inference.guided import sample_next
from trellis.models.base import LanguageModel
from trellis.models.chain import ChainModel
from trellis.models.conditioned import ConditionedChain, sample_each
from trellis.tasks.bootstrap import bootstrap
from trellis.tasks.lm import data_of

BENCH = "keywords"
MOST = 30  # words of a sentence
FREQUENT = 100  # words that are no keywords
POOL, TOGETHER = 20_000, 1000  # unconstrained samples, in all and at a time

Texts = Sequence[list[str] | None]  # the words of each sentence; None: the method found no sentence


def keyword_sets(model: ChainModel, tokens: np.ndarray, number: int, size: int) -> list[list[str]]:
    """Words of `number` sentences of a text, not among the most frequent."""
    draw, vocab = np.random.default_rng(0), model.vocab
    sentences = np.split(tokens, np.flatnonzero(tokens == vocab.eos))
    found = []
    for index in draw.permutation(len(sentences)):
        words = np.unique(sentences[index][sentences[index] >= FREQUENT])
        words = words[(words != vocab.eos) & (words != vocab.unk)]
        if len(words) >= size and len(sentences[index]) <= MOST:
            found.append(vocab.decode(draw.choice(words, size, replace=False)))
        if len(found) == number:
            break
    return found


def masked(found: Sequence[ConditionedChain]) -> list[str]:
    """One sentence for each constraint, word by word from the HMM, without the words after which the constraint could
    not be satisfied."""
    product, end, draw = found[0].product, found[0].model.vocab.eos, torch.Generator().manual_seed(0)
    position = product.begin(len(found))
    position = position._replace(states=torch.tensor([one.start for one in found], device=product.device))
    active, rows = torch.arange(len(found), device=product.device), [list[int]() for _ in found]
    while len(active):
        words = product.likelihoods.whole(position.ahead).log()
        tokens = sample_next(product, position, words, 0.0, draw)
        going = tokens != end
        active, tokens, position = active[going], tokens[going], position.some(going)
        for row, token in zip(active.tolist(), tokens.tolist(), strict=True):
            rows[row].append(token)
        position = product.read(position, tokens)[0]
    return [one.text(row) for one, row in zip(found, rows, strict=True)]


def rejected(model: LanguageModel, sets: Sequence[Sequence[str]]) -> Texts:
    """For each set, the first of POOL unconstrained sentences of at most MOST words that contains it."""
    rows = [row for seed in range(POOL // TOGETHER) for row in model.sample_tokens(TOGETHER, MOST + 1, seed).tolist()]
    ended = [model.vocab.decode(row[: row.index(model.vocab.eos)]) for row in rows if model.vocab.eos in row]
    pool = [(words, set(words)) for words in ended]
    return [next((words for words, own in pool if own.issuperset(keywords)), None) for keywords in sets]


def satisfied(sets: Sequence[Sequence[str]], texts: Texts) -> list[list[str] | None]:
    """The sentences, without those that lack a keyword or are too long."""
    pairs = zip(sets, texts, strict=True)
    return [words if words and len(words) <= MOST and set(words) >= set(some) else None for some, words in pairs]


def sums(judge: LanguageModel, texts: Texts) -> np.ndarray:
    """log p of each sentence and its number of tokens, both zero if there is none: [n, 2]."""
    found, kept = np.zeros((len(texts), 2)), [i for i, words in enumerate(texts) if words is not None]
    rows = [texts[i] for i in kept]
    if kept:
        found[kept] = np.stack([judge.log_prob(rows), [len(row or ()) + 1 for row in rows]], 1)
    return found


def perplexity(totals: np.ndarray) -> np.ndarray:
    """Of sums [..., 2 n], those of the last sentences less those of the first, if there are two."""
    found = [np.exp(-totals[..., i] / np.maximum(totals[..., i + 1], 1)) for i in range(0, totals.shape[-1], 2)]
    return found[-1] - found[0] if len(found) > 1 else found[0]


def report(bench: str, name: str, judge: LanguageModel, texts: Texts) -> np.ndarray:
    """The perplexity of the sentences of a method, with a confidence interval over the sets of keywords; and its sums
    by set."""
    found = sums(judge, texts)
    kept = found[found[:, 1] > 0]
    if len(kept):
        wide = bootstrap(kept, perplexity)
        more = {"low": wide.low, "high": wide.high, "sentences": len(kept)}
        emit(bench, name, "perplexity", wide.difference, judge.name, None, None, "", **more)
    return found


def beside(bench: str, name: str, judge: LanguageModel, one: np.ndarray, other: np.ndarray) -> None:
    """The difference in perplexity of two methods, on the sets for which both found a sentence."""
    both = np.hstack([one, other])[(one[:, 1] > 0) & (other[:, 1] > 0)]
    if len(both):
        found = bootstrap(both, perplexity)
        more = {"low": found.low, "high": found.high, "p": found.p_value, "sentences": len(both)}
        means = {"ours_is": float(perplexity(both[:, 2:].sum(0))), "theirs_is": float(perplexity(both[:, :2].sum(0)))}
        emit(bench, name, "difference", found.difference, judge.name, None, None, "", **more, **means)


def judge_of(model: ChainModel, corpus: Any, name: str, device: str) -> LanguageModel:
    """A saved model, or the 5-gram model of the same training text if it is called "ngram"."""
    judge = trellis.NGram.fit(model.vocab, corpus["train"]) if name == "ngram" else trellis.load(name, None, device)
    if not isinstance(judge, LanguageModel):
        raise SystemExit(f"The judge {name} is not a language model.")
    if list(judge.vocab.words) != list(model.vocab.words):
        raise SystemExit(f"The judge {name} has another vocabulary than the model.")
    return judge


@torch.no_grad()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keywords", description=__doc__)
    parser.add_argument("--model", default="demo", help="an HMM")
    parser.add_argument(
        "--judge", nargs="+", default=["ngram"], help="language models of the same vocabulary (default: ngram)"
    )
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--size", type=int, default=2, help="keywords of a sentence")
    parser.add_argument("--quick", action="store_true", help="20 sets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--show", type=int, default=0, help="print this many of the sentences")
    options = parser.parse_args(argv)
    model: ChainModel = trellis.load(options.model, HMM, options.device)
    corpus = load_corpus(data_of(model), vocab=model.vocab)
    judges = [judge_of(model, corpus, name, options.device) for name in options.judge]
    sets = keyword_sets(model, corpus["valid"].tokens, 20 if options.quick else options.sets, options.size)
    compare(model, judges, sets, options.show)


def compare(model: ChainModel, judges: Sequence[LanguageModel], sets: list[list[str]], shown: int = 0) -> None:
    """Sentences for every set of keywords, by three methods."""
    name = f"{len(sets)} sets of {len(sets[0])}"
    begun = time.perf_counter()
    found = model.constrain_each([all_of(*words) for words in sets], most=MOST)
    ours = sample_each(found)
    emit(BENCH, f"constrained, {name}", "time", time.perf_counter() - begun, "none", None, None, "s")
    methods: dict[str, Texts] = {
        "constrained": [model.vocab.split(text) for text in ours],
        "masking": [model.vocab.split(text) for text in masked(found)],
        f"rejection, {POOL} samples": rejected(model, sets),
    }
    kept = {method: satisfied(sets, texts) for method, texts in methods.items()}
    for method, texts in kept.items():
        count = sum(words is not None for words in texts)
        emit(BENCH, f"{method}, {name}", "satisfied", count, "all", len(sets), count / len(sets), "sentences")
    for judge in judges:
        (_, best), *others = [(method, report(BENCH, method, judge, texts)) for method, texts in kept.items()]
        for method, theirs in others:
            beside(BENCH, f"constrained less {method}", judge, theirs, best)
    for keywords, text in list(zip(sets, ours, strict=True))[:shown]:
        print(f"{', '.join(keywords)}: {text}")
