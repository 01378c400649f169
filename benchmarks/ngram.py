"""n-gram models: counting and scoring, against dictionaries and KenLM, and the perplexity of every order."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.race import options
from benchmarks.report import emit
from trellis.config import DataConfig
from trellis.corpus import Corpus, Split, Streams, load_corpus
from trellis.families.ngram.arpa import write_arpa
from trellis.families.ngram.kneser_ney import count_ngrams
from trellis.families.ngram.model import NGram
from trellis.tasks.lm import evaluate

ORDER, WINDOW = 5, 4096
PUBLISHED = {("ptb", "test"): 141.2, ("wikitext-2", "valid"): 248.7, ("wikitext-2", "test"): 234.3}  # 5-grams

Scorer = Callable[[], np.ndarray]  # log10 p of every token


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    if not os.environ.get("TRELLIS_DATA"):
        print("ngram: skipped, since TRELLIS_DATA is not set; PTB and WikiText-2 are read from there.", file=sys.stderr)
        return
    torch.set_num_threads(1)
    for name in ("ptb",) if chosen.quick else ("ptb", "wikitext-2"):
        corpus = load_corpus(DataConfig(source=name))
        report_counting(name, corpus, chosen.repeats)
        for order in range(1, ORDER + 1):
            model = NGram.fit(corpus.vocab, corpus["train"], order)
            report_perplexity(name, corpus, model)
        report_scoring(name, model, corpus["test"], chosen.repeats)


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(repeats):
        begin = perf_counter()
        work()
        seconds.append(perf_counter() - begin)
    return median(seconds)


def report_counting(name: str, corpus: Corpus, repeats: int) -> None:
    """Report the seconds for counting n-grams of orders 1 to 5, against one Counter of tuples per order."""
    text, tokens = corpus["train"], corpus["train"].tokens.tolist()

    def by_counter() -> list[Counter[tuple[int, ...]]]:
        return [Counter(zip(*(tokens[i:] for i in range(k)), strict=False)) for k in range(1, ORDER + 1)]

    ours = timed(lambda: count_ngrams(corpus.vocab, text, ORDER, cross_sentences=False), repeats)
    fitted = timed(lambda: NGram.fit(corpus.vocab, text, ORDER), repeats)
    peer = timed(by_counter, 1)
    emit("ngram", f"{name}, order {ORDER}", "count", ours, "Counter", peer, peer / ours, "s", with_smoothing=fitted)


def report_perplexity(name: str, corpus: Corpus, model: NGram) -> None:
    for split in ("valid", "test"):
        found = evaluate(model, Streams(corpus[split], 1, WINDOW))
        known = PUBLISHED.get((name, split)) if model.order == ORDER else None
        ratio = known / found.perplexity if known else None
        case = f"{name} {split}, order {model.order}"
        emit("ngram", case, "perplexity", found.perplexity, "published", known, ratio, "", tokens=found.tokens)


def report_scoring(name: str, model: NGram, text: Split, repeats: int) -> None:
    """Report tokens per second on one core, and how much the results of the peers differ from ours."""
    seconds = timed(lambda: evaluate(model, Streams(text, 1, WINDOW)), repeats)
    tokens = torch.from_numpy(text.tokens.astype(np.int64))[None]
    answer = model.score(tokens, model.start(1))[0][0].numpy() / math.log(10)
    for peer, make in PEERS.items():
        scorer = make(model, text)
        took = timed(scorer, repeats) if scorer else None
        emit(
            bench="ngram", case=f"{name} test, order {model.order}", metric="score", ours=len(answer) / seconds,
            peer=peer, peers=len(answer) / took if took else "not installed", ratio=took / seconds if took else None,
            unit="tokens/s", largest_difference=float(np.abs(scorer() - answer).max()) if scorer else None,
        )  # fmt: skip


def kenlm_scorer(model: NGram, text: Split) -> Scorer | None:
    """A function that scores sentences with KenLM, using our ARPA file."""
    try:
        import kenlm
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(model, Path(folder) / "model.arpa")
        peer = kenlm.Model(str(Path(folder) / "model.arpa"))
    bounds = zip(text.sentences[:-1], text.sentences[1:], strict=True)
    lines = [" ".join(model.vocab.decode(text.tokens[a : b - 1])) for a, b in bounds]
    return lambda: np.array([score for line in lines for score, _, _ in peer.full_scores(line)])


def dictionary_scorer(model: NGram, text: Split) -> Scorer:
    """A function that scores by backing off in a dictionary of tuples."""
    ngrams: list[tuple[int, ...]] = [(word,) for word in range(len(model.vocab))]
    for k in range(2, model.order + 1):
        parents, words = (part.tolist() for part in model.trie.level(k))
        ngrams += [(*ngrams[parent], word) for parent, word in zip(parents, words, strict=True)]
    log_probs = dict(zip(ngrams, model.log_probs.tolist(), strict=True))
    backoffs = dict(zip(ngrams, model.backoffs.tolist(), strict=False))
    tokens = [model.vocab.eos, *text.tokens.tolist()]

    def log_prob(ngram: tuple[int, ...]) -> float:
        total = 0.0
        while ngram not in log_probs:
            total += backoffs.get(ngram[:-1], 0.0)
            ngram = ngram[1:]
        return total + log_probs[ngram]

    def score() -> np.ndarray:
        ends = range(2, len(tokens) + 1)
        return np.array([log_prob(tuple(tokens[max(end - ORDER, 0) : end])) for end in ends]) / math.log(10)

    return score


PEERS: dict[str, Callable[[NGram, Split], Scorer | None]] = {"kenlm": kenlm_scorer, "dictionary": dictionary_scorer}
