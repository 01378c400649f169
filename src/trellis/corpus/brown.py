"""Brown clustering: word classes that keep the most mutual information between adjacent words, and a tree over them.

Words come in by frequency, the first few hundred as classes that merge, the others into the best class; then they are
exchanged between classes while that raises the average mutual information I(c; d). The classes are then merged,
cheapest pair first, into a binary tree whose paths name them. The class bigram log-likelihood per token is
I(c; d) - H(w), so the best partition is also the most likely class bigram model.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from trellis.corpus.brown_counts import BigramCounts, average_mutual_information, count_bigrams
from trellis.corpus.brown_merging import agglomerate, merge_tree
from trellis.corpus.brown_paths import Clustering
from trellis.corpus.cache import cache_folder
from trellis.errors import TrellisError
from trellis.kernels.brown import kernels as fastest_kernels
from trellis.kernels.brown.state import Bigrams, class_table, split_bigrams, tabulate, xlogx_table
from trellis.options import choose
from trellis.progress import progress
from trellis.storage import atomic_write

SETTLED = 1e-5  # exchange ends with a sweep that raises the mutual information by less than this fraction
MERGED_FIRST = 512  # words that are agglomerated, O(C²) each, before the rest is placed, O(C) per distinct bigram
CACHE_FORMAT = 1  # raise it where the algorithm finds other classes
LARGEST_CHUNK = 256  # words that choose their classes at the same time


def brown_clusters(
    corpus: BigramCounts | np.ndarray | Iterable[np.ndarray],
    classes: int,
    *,
    vocab_size: int | None = None,
    method: str = "exchange",
    seed: int = 0,
    alone: Iterable[int] = (),
    max_class_size: int | None = None,
    min_count: int = 1,
    max_sweeps: int = 30,
    kernels: ModuleType | None = None,
) -> Clustering:
    """Partition the words of a corpus (word ids, pieces of them in order, or their counts) into classes with a tree.

    `alone`: ids that keep a class to themselves; `max_class_size`: most words in a class; `min_count`: rarer words
    (by default those never seen) share one class, whatever its size; `seed` orders words of equal frequency.
    Method "exchange" moves words between classes until it settles, "agglomerative" is Brown's windowed merging.
    """
    cluster = choose(METHODS, method, "The clustering method")
    counts = corpus if isinstance(corpus, BigramCounts) else count_bigrams(corpus, vocab_size)
    start = _start(counts.words, classes, set(alone), max_class_size, min_count, seed)
    job = Job(counts, split_bigrams(counts.bigrams), kernels or fastest_kernels())
    assignment = cluster(job, start, max_sweeps)
    with progress("merging classes into a tree", classes - 1, "merges") as bar:
        paths = merge_tree(class_table(counts.bigrams, assignment, classes), job.kernels, bar)
    order = np.argsort(paths)
    rank = np.argsort(order)[assignment]
    return Clustering(rank, [paths[c] for c in order], counts.words, average_mutual_information(counts.bigrams, rank))


def cloned(vocab_size: int, counts: np.ndarray | None = None) -> Clustering:
    """Every word a class of its own, for cloned HMMs; the paths are its id in binary."""
    bits = max(1, (vocab_size - 1).bit_length())
    paths = [f"{word:0{bits}b}" for word in range(vocab_size)]
    return Clustering(np.arange(vocab_size), paths, np.zeros(vocab_size, np.int64) if counts is None else counts)


def brown_classes(
    tokens: np.ndarray, classes: int, vocab_size: int, seed: int, alone: tuple[int, ...] = ()
) -> np.ndarray:
    """The class of each word, those `alone` by themselves: [V]; from the cache where it is there, whole and sound."""
    choices = CACHE_FORMAT, classes, vocab_size, seed, str(tokens.dtype), *alone
    digest = hashlib.sha256(repr(choices).encode())
    digest.update(np.ascontiguousarray(tokens).data)
    path = cache_folder() / "classes" / f"{classes}-{digest.hexdigest()[:16]}.npy"
    found = _read_classes(path, classes, vocab_size)
    if found is None:
        found = brown_clusters(tokens, classes, vocab_size=vocab_size, seed=seed, alone=alone).assignment
        with atomic_write(path) as file:
            np.save(file, found, allow_pickle=False)
    return found


def _read_classes(path: Path, classes: int, vocab_size: int) -> np.ndarray | None:
    """What a file of the cache holds; None where it is not there or is broken."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    sound = found.shape == (vocab_size,) and found.dtype.kind == "i" and 0 <= found.min() <= found.max() < classes
    return found if sound else None


class Job(NamedTuple):
    """The counts and the means to work on them."""

    counts: BigramCounts
    bigrams: Bigrams
    kernels: ModuleType


class Start(NamedTuple):
    """The state of a clustering before the first word is placed."""

    assignment: np.ndarray  # [V] classes settled beforehand, -1: waiting
    words: np.ndarray  # ids that may be placed and moved, frequent first; the first of them have opened the classes
    room: np.ndarray  # [C] most words a class may hold, 0: closed

    def waiting(self) -> np.ndarray:
        """The words without a class, frequent first."""
        return self.words[self.assignment[self.words] < 0]


def _start(counts: np.ndarray, classes: int, alone: set[int], max_size: int | None, min_count: int, seed: int) -> Start:
    """Give the most frequent words, those kept alone and the rare ones together their classes."""
    if np.count_nonzero(counts) < 2:
        raise TrellisError("The corpus has fewer than two distinct words; there is nothing to cluster.")
    if min(alone, default=0) < 0 or max(alone, default=0) >= len(counts):
        raise TrellisError(f"A word to keep alone has an id outside the vocabulary of {len(counts)} words.")
    order = np.lexsort((np.random.default_rng(seed).permutation(len(counts)), -counts))
    is_alone = np.isin(order, list(alone))
    words = order[~is_alone & (counts[order] >= min_count)]
    rare = order[~is_alone & (counts[order] < min_count)]
    closed = len(alone) + (len(rare) > 0)
    opened = classes - closed
    _check_fit(classes, opened, closed, len(words), max_size)
    assignment = np.full(len(counts), -1)
    assignment[words[:opened]] = np.arange(opened)
    assignment[order[is_alone]] = np.arange(opened, opened + len(alone))
    assignment[rare] = classes - 1
    room = np.repeat([len(counts) if max_size is None else max_size, 0], [opened, closed])
    return Start(assignment, words, room)


def _check_fit(classes: int, opened: int, closed: int, words: int, max_size: int | None) -> None:
    """Refuse a number of classes, or a class size, that the words cannot fill or do not fit."""
    if opened > words:
        raise TrellisError(
            f"{classes} classes are more than the {words + closed} that the words can fill; ask for fewer."
        )
    if opened < min(words, 1) or classes < 1:
        needed = closed + min(words, 1)
        raise TrellisError(
            f"{classes} classes are too few: at least {needed} are needed, {closed} of them for words that are kept "
            "alone or too rare to be clustered."
        )
    if max_size is not None and opened * max_size < words:
        raise TrellisError(f"{words} words do not fit into {opened} classes of at most {max_size}; raise either.")


def _exchange(job: Job, start: Start, max_sweeps: int) -> np.ndarray:
    """Merge in some words and place the rest, then sweep over all until hardly anything is gained; [V]."""
    start = _merge_in(job, start, start.waiting()[:MERGED_FIRST])
    waiting = start.waiting()
    bigrams, classes, total = job.counts.bigrams, len(start.room), int(job.counts.bigrams.sum())
    table = xlogx_table(total)
    state = tabulate(bigrams, np.where(start.assignment < 0, classes, start.assignment), classes + 1)
    with progress("placing words", len(waiting), "words") as bar:
        for chunk in _chunks(waiting, len(start.words) - len(waiting)):
            job.kernels.place(chunk, job.bigrams, state, np.append(start.room, 0), table)
            bar.advance(len(chunk))
    state = tabulate(bigrams, state.assignment, classes)
    ami = average_mutual_information(bigrams, state.assignment)
    for sweep in range(max_sweeps):
        before = ami
        with progress(f"exchange, sweep {sweep + 1}", len(start.words), "words") as bar:
            for chunk in _chunks(start.words, len(start.words)):
                ami += job.kernels.exchange(chunk, job.bigrams, state, start.room, table) / total
                bar.update(ami=ami)
                bar.advance(len(chunk))
        if ami - before <= SETTLED * ami:
            break
    return state.assignment


def _chunks(words: np.ndarray, placed: int) -> Iterator[np.ndarray]:
    """Pieces that are small beside the number of words already placed, so that choices made together agree."""
    begin = 0
    while begin < len(words):
        end = begin + min(max((placed + begin) // 16, 1), LARGEST_CHUNK)
        yield words[begin:end]
        begin = end


def _merge_in(job: Job, start: Start, words: np.ndarray) -> Start:
    """Let the words come in one by one, merging a pair of classes each time."""
    with progress("agglomerating words", len(words), "words") as bar:
        assignment, room = agglomerate(
            job.counts.bigrams, job.bigrams, start.assignment, words, start.room, job.kernels, bar
        )
    return start._replace(assignment=assignment, room=room)


METHODS: dict[str, Callable[[Job, Start, int], np.ndarray]] = {  # with how many sweeps at most
    "exchange": _exchange,
    "agglomerative": lambda job, start, max_sweeps: _merge_in(job, start, start.waiting()).assignment,
}
