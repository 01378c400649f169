"""Brown clustering: classes of words such that the classes of adjacent words have the largest mutual information, and a
binary tree over the classes.

Words are inserted in order of frequency, and the first ones become the initial classes. Each of the next few hundred
words becomes an additional class, and then the two classes that are cheapest to merge are merged. Every later word
joins the best class. Then words are moved between classes as long as this raises I(c; d), the average mutual
information of the classes c and d of adjacent words. Finally the classes are merged, cheapest pair first, into a binary
tree. The path to a class in this tree is its name. The log-likelihood per token of a class bigram model is
I(c; d) - H(w), where H(w) is the entropy of the words. The partition with the largest I(c; d) therefore also has the
maximum likelihood.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from trellis.corpus.brown_counts import BigramCounts, average_mutual_information, count_bigrams
from trellis.corpus.brown_merging import Job, Start, agglomerate, merge_tree
from trellis.corpus.brown_paths import Clustering
from trellis.corpus.cache import cache_folder, writing
from trellis.errors import TrellisError
from trellis.kernels.brown import kernels as fastest_kernels
from trellis.kernels.brown.state import class_table, split_bigrams, tabulate, xlogx_table
from trellis.options import choose
from trellis.progress import progress
from trellis.storage import load_tensors, save_tensors, workshop

TOLERANCE = 1e-5  # stop after a sweep with a smaller relative gain in mutual information
MERGED_FIRST = 512  # words inserted by merging, in O(C²) for C classes; later words take O(C) per distinct bigram
CACHE_FORMAT = 1  # increment when the algorithm's output changes
CLASSES = "classes"  # the tensor in a file of the cache
LARGEST_CHUNK = 256  # the most words that choose their classes in parallel
logger = logging.getLogger(__name__)


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
    """Partition the words of a corpus into classes, and merge the classes into a binary tree.

    The corpus is an array of word ids, an iterable of such arrays, or bigram counts. Words rarer than `min_count` (by
    default, unseen words) share one class. `alone` lists ids that each get a class of their own. `max_class_size`
    limits the number of words of every other class. `seed` breaks ties in frequency. The method "exchange" moves words
    between classes until convergence; "agglomerative" is Brown's windowed merging.
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
    """One class per word, for cloned HMMs; each path is the word's id in binary."""
    bits = max(1, (vocab_size - 1).bit_length())
    paths = [f"{word:0{bits}b}" for word in range(vocab_size)]
    return Clustering(np.arange(vocab_size), paths, np.zeros(vocab_size, np.int64) if counts is None else counts)


def brown_classes(
    tokens: np.ndarray, classes: int, vocab_size: int, seed: int, alone: tuple[int, ...] = ()
) -> np.ndarray:
    """The class of each word: [V]. Each word in `alone` has a class of its own. Classes are read from the cache if
    possible."""
    choices = CACHE_FORMAT, classes, vocab_size, seed, str(tokens.dtype), *alone
    digest = hashlib.sha256(repr(choices).encode())
    digest.update(np.ascontiguousarray(tokens).data)
    path = cache_folder() / "classes" / f"{classes}-{digest.hexdigest()[:16]}.safetensors"
    found = _read_classes(path, classes, vocab_size)
    if found is None:
        found = brown_clusters(tokens, classes, vocab_size=vocab_size, seed=seed, alone=alone).assignment
        with writing(path.parent), workshop(path.parent) as folder:
            save_tensors(folder / path.name, {CLASSES: found})
            os.replace(folder / path.name, path)
    return found


def _read_classes(path: Path, classes: int, vocab_size: int) -> np.ndarray | None:
    """Read a cached file of classes; None if it is missing or damaged."""
    try:
        found = load_tensors(path, checked=True)[CLASSES].numpy()
    except (TrellisError, KeyError):
        if path.exists():
            logger.warning("%s is damaged; it is created again.", path)
        return None
    sound = found.shape == (vocab_size,) and found.dtype.kind == "i" and 0 <= found.min() <= found.max() < classes
    return found if sound else None


def _start(counts: np.ndarray, classes: int, alone: set[int], max_size: int | None, min_count: int, seed: int) -> Start:
    """Assign the initial classes: one for each of the most frequent words and of the `alone` words, one for all rare
    words."""
    if np.count_nonzero(counts) < 2:
        raise TrellisError("The corpus has fewer than two distinct words: nothing to cluster.")
    if min(alone, default=0) < 0 or max(alone, default=0) >= len(counts):
        raise TrellisError(f"`alone` contains an id outside the vocabulary of {len(counts)} words.")
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
    """Reject a number of classes, or a class size, that is infeasible for this many words."""
    if opened > words:
        raise TrellisError(
            f"{classes} classes are more than the {words + closed} that the words can fill; request fewer."
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
    """The class of each word [V]: merge the first words into classes, add every other word to the best class, and then
    move words between classes until convergence."""
    start = agglomerate(job, start, start.waiting()[:MERGED_FIRST])
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
        if ami - before <= TOLERANCE * ami:
            break
    return state.assignment


def _chunks(words: np.ndarray, placed: int) -> Iterator[np.ndarray]:
    """Chunks of words that can choose their classes in parallel. A chunk is small relative to the number of words
    that already have a class."""
    begin = 0
    while begin < len(words):
        end = begin + min(max((placed + begin) // 16, 1), LARGEST_CHUNK)
        yield words[begin:end]
        begin = end


METHODS: dict[str, Callable[[Job, Start, int], np.ndarray]] = {  # the int is the maximum number of sweeps
    "exchange": _exchange,
    "agglomerative": lambda job, start, max_sweeps: agglomerate(job, start, start.waiting()).assignment,
}
