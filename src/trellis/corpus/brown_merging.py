"""Greedy merging of classes, cheapest pair first: Brown's windowed clustering, and the tree over finished classes."""

from types import ModuleType
from typing import NamedTuple

import numpy as np
from scipy import sparse

from trellis.corpus.brown_counts import BigramCounts
from trellis.kernels.brown.state import Bigrams, Classes, tabulate, xlogx_table
from trellis.progress import Progress, progress


class Job(NamedTuple):
    """Bigram counts and the kernels that process them."""

    counts: BigramCounts
    bigrams: Bigrams
    kernels: ModuleType


class Start(NamedTuple):
    """An unfinished clustering: the classes of some words, and the words that still have to be clustered."""

    assignment: np.ndarray  # [V] class of each word; -1: none yet
    words: np.ndarray  # ids of the words to cluster, most frequent first; the first ones become the initial classes
    room: np.ndarray  # [C] maximum number of words of each class; 0: no words can join it

    def waiting(self) -> np.ndarray:
        """The words without a class, most frequent first."""
        return self.words[self.assignment[self.words] < 0]


class Window:
    """The classes of a clustering, each in a numbered slot, and the cost of merging each pair of them. Insertions and
    merges update the costs."""

    def __init__(self, classes: Classes, used: int, total: int, kernels: ModuleType) -> None:
        slots = len(classes.size)
        self.classes, self.kernels, self.table = classes, kernels, xlogx_table(total)
        self.rises = np.zeros((slots, slots))
        self.alive = np.arange(used)
        for slot in self.alive:
            kernels.fill_rises(slot, self.alive[slot + 1 :], self.alive, classes, self.table, self.rises)

    def insert(self, word: int, slot: int, bigrams: Bigrams) -> None:
        """Insert a word as a class of its own. Only bigrams of inserted words are counted."""
        right, left = self.kernels.neighbours(word, bigrams, self.classes)
        classes, repeats = self.classes, bigrams.repeats[word]
        for counts, margin, here, opposite in (
            (classes.follows, classes.first, right, left),
            (classes.precedes, classes.second, left, right),
        ):
            counts[slot], counts[:, slot], counts[slot, slot] = here, opposite, repeats
            margin += opposite
            margin[slot] = here.sum() + repeats
        classes.size[slot], classes.assignment[word] = 1, slot
        self.kernels.rise_with(slot, self.alive, classes, self.table, self.rises)
        others, self.alive = self.alive, np.sort(np.append(self.alive, slot))
        self.kernels.fill_rises(slot, others, self.alive, classes, self.table, self.rises)

    def merge_cheapest(self, room: np.ndarray) -> tuple[int, int, float]:
        """Merge the two classes with the smallest loss of mutual information; returns the slots kept and freed, and the
        loss."""
        a, b, loss = self.kernels.cheapest(self.alive, self.rises, self.classes, room, self.table)
        others = self.alive[(self.alive != a) & (self.alive != b)]
        self.kernels.rise_after_merge(a, b, others, self.classes, self.table, self.rises)
        for counts in (self.classes.follows, self.classes.precedes):
            counts[a] += counts[b]
            counts[:, a] += counts[:, b]
            counts[b] = counts[:, b] = 0
        for margin in (self.classes.first, self.classes.second, self.classes.size):
            margin[a] += margin[b]
            margin[b] = 0
        self.alive = self.alive[self.alive != b]
        self.kernels.fill_rises(a, others, self.alive, self.classes, self.table, self.rises)
        return a, b, loss


def agglomerate(job: Job, start: Start, words: np.ndarray) -> Start:
    """Brown's algorithm: insert each word as an additional class, and merge the cheapest pair of classes after each."""
    bigrams, free, room = job.counts.bigrams, len(start.room), np.append(start.room, start.room.max())
    window = Window(tabulate(bigrams, start.assignment, len(room)), free, int(bigrams.sum()), job.kernels)
    labels = window.classes.assignment
    with progress("agglomerating words", len(words), "words") as bar:
        for word in words:
            window.insert(word, free, job.bigrams)
            stays, free, _ = window.merge_cheapest(room)
            labels[labels == free] = stays
            bar.advance()
    assignment = np.where(labels < 0, -1, np.searchsorted(window.alive, labels))
    return start._replace(assignment=assignment, room=room[window.alive])


def merge_tree(table: np.ndarray, kernels: ModuleType, bar: Progress) -> list[str]:
    """The path of each of C classes in a binary tree, as bits; the tree merges the classes of a bigram table [C, C]."""
    classes, room = len(table), np.full(len(table), len(table))
    leaves = tabulate(sparse.csr_array(table), np.arange(classes), classes)
    window = Window(leaves, classes, int(table.sum()), kernels)
    merges = []
    for _ in range(classes - 1):
        merges.append(window.merge_cheapest(room)[:2])
        bar.advance()
    paths = [""] * classes
    for stays, absorbed in reversed(merges):
        paths[absorbed] = paths[stays] + "1"
        paths[stays] += "0"
    return paths if classes > 1 else ["0"]
