"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999) of streamed n-gram counts.

For an n-gram of the highest order, let a be its count. For an n-gram of a lower order, let a be the number of distinct
words that precede it; if it begins a sentence, nothing precedes it, and a is its count. Then

    p(x | c) = (a(c x) - D[a(c x)]) / a(c) + γ(c) p(x | c'),   γ(c) = Σ_x D[a(c x)] / a(c),   a(c) = Σ_x a(c x),

where c' is c without its first word, D[1], D[2], D[3+] are estimated for each order, and p(x) falls back on 1 / V.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trellis.config import DataConfig
from trellis.corpus import Split, Vocabulary
from trellis.corpus.counting import ids_of_file, recipe_for
from trellis.corpus.dask import total_with_dask
from trellis.corpus.moments import Sums
from trellis.corpus.recipe import Recipe
from trellis.errors import TrellisError
from trellis.families.ngram.trie import NONE, Trie

CHUNK = 1 << 20  # tokens counted at a time
FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])  # discounts of an order whose counts do not allow an estimate

Counted = tuple[np.ndarray, np.ndarray]  # sorted keys and their counts


def count_ngrams(vocab: Vocabulary, split: Split, order: int, cross_sentences: bool) -> tuple[Trie, list[np.ndarray]]:
    """All n-grams up to an order, and the counts of each order. The text begins after an <eos>.

    Unless contexts cross sentences, <eos> occurs only as the first word of an n-gram (the beginning of a sentence) or
    as its last word."""
    check_order(split, order, cross_sentences)

    def count(trie: Trie | None) -> Counted:
        return count_order(trie, blocks_of(split), vocab, cross_sentences)

    return count_orders(vocab, order, count)


def blocks_of(split: Split) -> Iterator[np.ndarray]:
    """The word ids of a text, in blocks."""
    return (split.tokens[begin : begin + CHUNK] for begin in range(0, len(split.tokens), CHUNK))


def ngrams_of_files(
    paths: Sequence[str | Path], vocab: Vocabulary, config: DataConfig, order: int
) -> tuple[Trie, list[np.ndarray]]:
    """`count_ngrams` of files, counted by dask; contexts do not cross sentences."""
    recipe = recipe_for(paths, config)

    def count(trie: Trie | None) -> Counted:
        work = partial(count_order_of_file, trie=trie, vocab=vocab, recipe=recipe)
        return total_with_dask(work, paths, merge)

    return count_orders(vocab, order, count)


def count_orders(
    vocab: Vocabulary, order: int, count: Callable[[Trie | None], Counted]
) -> tuple[Trie, list[np.ndarray]]:
    """All n-grams up to an order. `count(trie)` returns those that extend the n-grams of a trie by a word, and
    `count(None)` returns the single words."""
    counts, trie = [np.zeros(len(vocab), np.int64)], Trie.of_words(len(vocab))
    words, seen = count(None)
    counts[0][words] = seen
    for _ in range(2, order + 1):
        keys, seen = count(trie)
        trie = trie.grow(torch.from_numpy(keys))
        counts.append(seen)
    return trie, counts


def count_order(trie: Trie | None, blocks: Iterable[np.ndarray], vocab: Vocabulary, cross_sentences: bool) -> Counted:
    """The n-grams of a text that are one word longer than the longest n-grams of the trie, and their counts."""
    runs = Sums(merge, size=lambda run: run[0].size)
    for text in chunks(vocab, blocks, len(trie.sizes) if trie else 0):
        runs.add(keys_of(trie, text, vocab, cross_sentences) if trie else np.unique(text.numpy(), return_counts=True))
    return runs.total()


def count_order_of_file(path: str | Path, trie: Trie | None, vocab: Vocabulary, recipe: Recipe) -> Counted | None:
    blocks = ids_of_file(path, vocab, recipe)
    first = next(blocks, None)
    return None if first is None else count_order(trie, chain([first], blocks), vocab, cross_sentences=False)


def check_order(split: Split, order: int, cross_sentences: bool) -> None:
    """Raise if the text has no n-grams of this order."""
    if not split.tokens.size:
        raise TrellisError("Nothing to count: the split has no tokens.")
    if order < 1:
        raise TrellisError(f"The order of the n-gram model is {order}; it must be at least 1.")
    longest = 1 + (split.tokens.size if cross_sentences else int(np.diff(split.sentences).max()))
    if order > longest:
        whole = "text" if cross_sentences else "longest sentence"
        raise TrellisError(
            f"The order of the n-gram model is {order}, but the {whole} has only {longest} words, including beginning "
            f"and end; use an order of at most {longest}."
        )


def chunks(vocab: Vocabulary, blocks: Iterable[np.ndarray], before: int) -> Iterator[Tensor]:
    """Blocks of n tokens that follow each other, each after the `before` tokens that precede it: [1, before + n]. The
    first block comes after an <eos>."""
    tail = np.full(before, NONE)
    tail[-1:] = vocab.eos
    for block in blocks:
        text = np.concatenate([tail, block])
        if text.max() >= len(vocab):
            raise TrellisError(
                f"The text contains the word id {text.max()}, but the vocabulary has {len(vocab):,} words; pass the "
                "vocabulary with which the text was encoded."
            )
        tail = text[len(text) - before :]
        yield torch.from_numpy(text)[None]


def keys_of(trie: Trie, text: Tensor, vocab: Vocabulary, cross_sentences: bool) -> Counted:
    """The keys and counts of the n-grams that end among the new tokens of a chunk. They are one word longer than the
    longest n-grams of the trie."""
    before = len(trie.sizes)
    parents, last = trie.walk(text)[-1][0, before - 1 : -1], text[0, before - 1 : -1]
    whole = parents >= 0
    if before > 1 and not cross_sentences:
        whole &= last != vocab.eos
    keys = parents * len(vocab) + text[0, before:]
    return np.unique(keys[whole].numpy(), return_counts=True)


def merge(one: Counted, other: Counted) -> Counted:
    """The sum of two sets of counts."""
    keys, counts = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    return keys[first], np.add.reduceat(counts[order], first)


def smooth(trie: Trie, counts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """log p(last word | preceding words) of every node [N], and log γ of every node that can be a context."""
    parents, suffixes = links(trie)
    probs, backoffs, lower = list[np.ndarray](), list[np.ndarray](), np.array([1 / trie.sizes[0]])
    for k, seen in enumerate(counts):
        if k + 1 < len(counts):
            kinds = np.bincount(suffixes[k + 1], minlength=len(seen))
            seen = np.where(kinds > 0, kinds, seen)
        cut = discounts(seen)[np.minimum(seen, 3)]
        total = np.bincount(parents[k], seen, len(lower))
        spare = np.divide(np.bincount(parents[k], cut, len(lower)), total, out=np.ones_like(total), where=total > 0)
        backoffs.append(np.log(spare))
        lower = (seen - cut) / total[parents[k]] + spare[parents[k]] * lower[suffixes[k]]
        probs.append(np.log(lower))
    return np.concatenate(probs), np.concatenate([np.empty(0), *backoffs[1:]])


def largest_sum(trie: Trie, log_probs: np.ndarray, backoffs: np.ndarray) -> float:
    """The largest sum of the probabilities of all words after a context, which is 1 if they are normalised."""
    levels, (parents, suffixes) = list(pairwise(trie.bounds)), links(trie)
    probs = [np.exp(log_probs[begin:end]) for begin, end in levels]
    most = float(probs[0].sum())
    for k in range(1, len(levels)):
        contexts = len(probs[k - 1])
        known = np.where(suffixes[k] < 0, 0.0, probs[k - 1][suffixes[k]])  # of the same words, by backing off
        own, below = (np.bincount(parents[k], p, contexts) for p in (probs[k], known))
        total = own + np.exp(backoffs[slice(*levels[k - 1])]) * (1 - below)
        most = max(most, float(total.max(initial=0.0)), float(own.max(initial=0.0)))
    return most


def links(trie: Trie) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For the n-grams of each order, two indices in the order below: without the last word, and without the first
    word."""
    trie, words = trie._replace(keys=trie.keys.cpu()), np.zeros(trie.sizes[0], np.int64)
    parents, suffixes = [words], [words]
    for k in range(2, len(trie.sizes) + 1):
        below, before = trie.bounds[k - 2], torch.from_numpy(suffixes[-1])
        parent, word = trie.level(k)
        here = parent - below
        suffix = word if k == 2 else trie.find(before[here] + trie.bounds[k - 3], word) - below
        parents.append(here.numpy())
        suffixes.append(suffix.numpy())
    return parents, suffixes


def discounts(counts: np.ndarray) -> np.ndarray:
    """The discounts D[0 .. 3+]: D[i] = i - (i + 1) Y n_{i+1} / n_i, Y = n_1 / (n_1 + 2 n_2), where n_i n-grams have the
    count i."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    if not n[1:].all():
        return FALLBACK
    i = np.arange(1, 4)
    cut = i - (i + 1) * n[1] / (n[1] + 2 * n[2]) * n[2:] / n[1:4]
    return np.append(0.0, cut) if (cut > 0).all() else FALLBACK
