"""Sentences from keywords: how many contain them, and their perplexity under another model, beside masking (tokens are
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
from trellis.constraints import Constraint, all_of
from trellis.corpus.load import load_corpus
from trellis.families.hmm.model import HMM
from trellis.inference.guided import sample_next
from trellis.models.base import LanguageModel
from trellis.models.chain import ChainModel
from trellis.models.conditioned import Conditioned, sample_each
from trellis.tasks.lm import data_of

BENCH = "keywords"
MOST = 30  # words of a sentence
FREQUENT = 100  # words that are no keywords
POOL = 20_000  # unconstrained samples


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


def masked(found: Sequence[Conditioned]) -> list[str]:
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


def report(
    name: str, model: ChainModel, judge: LanguageModel, constraints: list[Constraint], texts: Sequence[str | None]
) -> None:
    """The share of the sentences that satisfy their constraints, and the perplexity of these."""
    pairs = zip(constraints, texts, strict=True)
    kept = [t for c, t in pairs if t is not None and c.compile(model.vocab).accepts(model.encode_line(t)[0].tolist())]
    rows = [model.vocab.split(text) for text in kept]
    total, count = (float(np.sum(judge.log_prob(rows))), sum(len(row) + 1 for row in rows)) if rows else (0.0, 1)
    emit(BENCH, name, "satisfied", len(kept) / len(texts), "all", 1.0, len(kept) / len(texts), "share")
    emit(BENCH, name, "perplexity", float(np.exp(-total / count)), judge.name, None, None, "", sentences=len(kept))


@torch.no_grad()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks keywords", description=__doc__)
    parser.add_argument("--model", default="demo", help="an HMM")
    parser.add_argument("--judge", help="a language model of the same vocabulary (default: Kneser-Ney of order 5)")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--size", type=int, default=2, help="keywords of a sentence")
    parser.add_argument("--quick", action="store_true", help="20 sets")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--show", type=int, default=0, help="print this many of the sentences")
    options = parser.parse_args(argv)
    model: ChainModel = trellis.load(options.model, HMM, options.device)
    corpus = load_corpus(data_of(model), vocab=model.vocab)
    judge: Any = trellis.NGram.fit(model.vocab, corpus["train"])
    if options.judge is not None:
        judge = trellis.load(options.judge, None, options.device)
    sets = keyword_sets(model, corpus["valid"].tokens, 20 if options.quick else options.sets, options.size)
    compare(model, judge, sets, options.show)


def compare(model: ChainModel, judge: LanguageModel, sets: list[list[str]], shown: int = 0) -> None:
    """Sentences for every set of keywords, by three methods."""
    constraints, name = [all_of(*words) for words in sets], f"{len(sets)} sets of {len(sets[0])}"
    begun = time.perf_counter()
    found = model.constrain_each(constraints, most=MOST)
    ours = sample_each(found)
    emit(BENCH, f"constrained, {name}", "time", time.perf_counter() - begun, "none", None, None, "s")
    pool = [(text, set(model.vocab.split(text))) for text in model.sample(POOL, MOST)]
    drawn = [next((text for text, words in pool if words.issuperset(keywords)), None) for keywords in sets]
    for method, texts in (("constrained", ours), ("masking", masked(found)), (f"rejection, {POOL} samples", drawn)):
        report(f"{method}, {name}", model, judge, constraints, texts)
    for keywords, text in list(zip(sets, ours, strict=True))[:shown]:
        print(f"{', '.join(keywords)}: {text}")
