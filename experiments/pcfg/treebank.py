"""Gold trees, treated as the PTB text was: no traces, no punctuation, lower case, numbers as N, rare words as <unk>."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trellis.corpus import Corpus, Split, Vocabulary
from trellis.errors import TrellisError

TREES = Path("treebank_sample/trees.txt.gz")
TOKEN = re.compile(r"\(|\)|[^\s()]+")
DROPPED = {"-NONE-", ",", ".", ":", "``", "''", "-LRB-", "-RRB-"}  # tags of traces and punctuation
NUMBER = re.compile(r"[-+.,:/\\]*\d[-\d.,:/\\]*|%")  # PTB writes per cent as a second N
Span = tuple[int, int]


class Gold(NamedTuple):
    """A sentence of the treebank: its words and the constituents of two words or more."""

    words: tuple[str, ...]
    spans: frozenset[Span]


def read_trees() -> list[Gold]:
    """All trees of the sample that have a word."""
    folder = os.environ.get("TRELLIS_DATA")
    if not folder or not (path := Path(folder) / TREES).is_file():
        raise TrellisError(f"There is no {TREES} in the folder TRELLIS_DATA; it holds the gold trees.")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [parse(line) for line in file]
    return [gold for gold in found if gold.words]


def parse(line: str) -> Gold:
    """The words and constituents of a bracketed tree.

    >>> parse("( (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))")
    Gold(words=('the', 'cat', 'sleeps'), spans=frozenset({(0, 2), (0, 3)}))
    """
    words: list[str] = []
    spans: set[Span] = set()
    open_: list[int] = []
    before, tag = "", ""
    for token in TOKEN.findall(line):
        if token == "(":
            open_.append(len(words))
        elif token == ")":
            start = open_.pop()
            if len(words) - start > 1:
                spans.add((start, len(words)))
        elif before == "(":
            tag = token
        elif tag not in DROPPED:
            words.append("N" if NUMBER.fullmatch(token) else token.lower())
        before = token
    return Gold(tuple(words), frozenset(spans))


def known(gold: Gold, vocab: Vocabulary) -> Gold:
    """The same tree with <unk> for words outside the vocabulary."""
    return gold._replace(words=tuple(vocab.decode(vocab.encode(gold.words).tolist())))


def without(corpus: Corpus, trees: Iterable[Gold]) -> Corpus:
    """The corpus without the training sentences that are among the trees."""
    vocab, split = corpus.vocab, corpus["train"]
    gold = {tuple(vocab.encode(tree.words).tolist()) for tree in trees}
    sentences = np.split(split.tokens, split.sentences[1:-1])
    kept = [one for one in sentences if tuple(one[:-1].tolist()) not in gold]
    offsets = np.cumsum([0, *map(len, kept)])
    text = Split(np.concatenate(kept), offsets, np.array([0, offsets[-1]]))
    less = f"{corpus.description}, without {len(sentences) - len(kept):,} sentences"
    return Corpus(vocab, {**corpus.splits, "train": text}, less, corpus.recipe)


def f1(found: Iterable[Span], gold: Gold) -> float:
    """Unlabelled F1 of one sentence, without the span of the whole sentence."""
    whole = (0, len(gold.words))
    right, guessed = gold.spans - {whole}, set(found) - {whole}
    return 2 * len(right & guessed) / (len(right) + len(guessed)) if right or guessed else 1.0


def left_branching(length: int, random: np.random.Generator) -> list[Span]:
    return [(0, stop) for stop in range(2, length + 1)]


def right_branching(length: int, random: np.random.Generator) -> list[Span]:
    return [(start, length) for start in range(length - 1)]


def random_tree(length: int, random: np.random.Generator) -> list[Span]:
    """A binary tree, split at random from the top."""
    spans, waiting = [], [(0, length)]
    while waiting:
        start, stop = waiting.pop()
        if stop - start > 1:
            middle = int(random.integers(start + 1, stop))
            spans.append((start, stop))
            waiting += [(start, middle), (middle, stop)]
    return spans


BASELINES: dict[str, Callable[[int, np.random.Generator], list[Span]]] = {
    "left": left_branching,
    "right": right_branching,
    "random": random_tree,
}
