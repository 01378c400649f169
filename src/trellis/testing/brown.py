"""Brown clustering in plain NumPy: the reference for `trellis.kernels.brown.numba`.

Let N be the number of bigrams, and N(c, d) the number of bigrams of a word of class c and a word of class d. Up to a
constant, N times the average mutual information of a partition is Σ f(N(c, d)) - Σ f(N(c, ·)) - Σ f(N(·, d)) with
f(n) = n log n, so that a move or a merge changes few terms.
"""

import numpy as np

from trellis.kernels.brown.numba import RAISES
from trellis.kernels.brown.state import Bigrams, Classes


def xlogx(n: np.ndarray, table: np.ndarray) -> np.ndarray:
    """f(n) = n log n, by lookup within the table's range."""
    if n.size == 0 or n.max() < len(table):
        return table[n]
    return np.where(n < len(table), table[np.minimum(n, len(table) - 1)], n * np.log(np.maximum(n, 1)))


def neighbours(word: int, bigrams: Bigrams, classes: Classes) -> tuple[np.ndarray, np.ndarray]:
    """How often each class follows and precedes a word, [C] and [C]. Repetitions of the word, and neighbours that have
    no class yet, are not counted."""

    def by_class(start: np.ndarray, words: np.ndarray, counts: np.ndarray) -> np.ndarray:
        span = slice(start[word], start[word + 1])
        into, placed = classes.assignment[words[span]], classes.assignment[words[span]] >= 0
        weights = counts[span][placed]
        return np.bincount(into[placed], weights=weights, minlength=len(classes.size)).astype(np.int64)

    right = by_class(bigrams.right_start, bigrams.right_word, bigrams.right_count)
    left = by_class(bigrams.left_start, bigrams.left_word, bigrams.left_count)
    return right, left


def insertion_gains(word: int, bigrams: Bigrams, classes: Classes, table: np.ndarray) -> np.ndarray:
    """The gain in mutual information from inserting a word into each class [C], after it has been removed from its
    own."""
    own, repeats = classes.assignment[word], bigrams.repeats[word]
    right, left = neighbours(word, bigrams, classes)
    gains = np.zeros(len(classes.size))
    for c in np.flatnonzero(right + left):
        for here, opposite, counts in ((right, left, classes.precedes), (left, right, classes.follows)):
            if here[c]:
                row = counts[c].copy()
                row[own] -= here[c]
                if c == own:
                    row -= opposite
                    row[own] -= repeats
                gains += xlogx(row + here[c], table) - xlogx(row, table)
    inside = np.diagonal(classes.follows).copy()
    inside[own] -= right[own] + left[own] + repeats
    gains += xlogx(inside + right + left + repeats, table) - xlogx(inside + right, table)
    gains += xlogx(inside, table) - xlogx(inside + left, table)
    for margin, count in ((classes.first, bigrams.first[word]), (classes.second, bigrams.second[word])):
        rest = margin.copy()
        rest[own] -= count
        gains -= xlogx(rest + count, table) - xlogx(rest, table)
    return gains


def add_word(
    word: int, c: int, sign: int, right: np.ndarray, left: np.ndarray, bigrams: Bigrams, classes: Classes
) -> None:
    """Add (sign 1) or subtract (sign -1) the word's counts to or from class c."""
    for counts, here, opposite in ((classes.follows, right, left), (classes.precedes, left, right)):
        counts[c] += sign * here
        counts[:, c] += sign * opposite
        counts[c, c] += sign * bigrams.repeats[word]
    classes.first[c] += sign * bigrams.first[word]
    classes.second[c] += sign * bigrams.second[word]
    classes.size[c] += sign


def move(word: int, target: int, bigrams: Bigrams, classes: Classes) -> None:
    """Move the word from its class to the target."""
    right, left = neighbours(word, bigrams, classes)
    add_word(word, classes.assignment[word], -1, right, left, bigrams, classes)
    add_word(word, target, 1, right, left, bigrams, classes)
    classes.assignment[word] = target


def best_class(word: int, gains: np.ndarray, classes: Classes, room: np.ndarray) -> int:
    """The class with the largest gain, among the word's own class and the classes that have room for it."""
    own, allowed = classes.assignment[word], classes.size < room
    allowed[own] = room[own] > 0
    return int(np.argmax(np.where(allowed, gains, -np.inf)))


def place(words: np.ndarray, bigrams: Bigrams, classes: Classes, room: np.ndarray, table: np.ndarray) -> None:
    """Move each word to the best class that has room. All words choose in parallel; if a class is then full, a word
    chooses again."""
    targets = [best_class(word, insertion_gains(word, bigrams, classes, table), classes, room) for word in words]
    for word, target in zip(words, targets, strict=True):
        if classes.size[target] >= room[target]:
            target = best_class(word, insertion_gains(word, bigrams, classes, table), classes, room)
        move(word, target, bigrams, classes)


def exchange(words: np.ndarray, bigrams: Bigrams, classes: Classes, room: np.ndarray, table: np.ndarray) -> float:
    """Move words between classes. Returns the gain in nats.

    All words choose a class in parallel. The words that would move choose again one by one, and move only if this
    raises the mutual information. The last word of a class stays.
    """

    def choice(word: int) -> tuple[int, float]:
        gains = insertion_gains(word, bigrams, classes, table)
        best = best_class(word, gains, classes, room)
        return best, gains[best] - gains[classes.assignment[word]]

    words = words[classes.size[classes.assignment[words]] > 1]
    enough = RAISES * float(xlogx(classes.first.sum(), table))
    restless = [word for word in words if choice(word)[0] != classes.assignment[word]]
    gained = 0.0
    for word in restless:
        best, gain = choice(word)
        if gain > enough and classes.size[classes.assignment[word]] > 1:
            move(word, best, bigrams, classes)
            gained += gain
    return gained


def joint(x: np.ndarray, y: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The gain from merging two counts: f(x + y) - f(x) - f(y) with f(n) = n log n; zero if either count is zero."""
    return xlogx(x + y, table) - xlogx(x, table) - xlogx(y, table)


def merge_rise(a: int, b: int, alive: np.ndarray, classes: Classes, table: np.ndarray) -> float:
    """The increase of Σ N(c, d) log N(c, d) over all pairs of classes (c, d) when classes a and b are merged."""
    cells = np.zeros(len(alive))
    for counts in (classes.follows, classes.precedes):
        cells += joint(counts[a, alive], counts[b, alive], table)
    cells[(alive == a) | (alive == b)] = 0.0
    square = classes.follows[[a, a, b, b], [a, b, a, b]]
    return float(np.cumsum(cells)[-1] + (xlogx(square.sum(), table) - np.cumsum(xlogx(square, table))[-1]))


def fill_rises(
    slot: int, others: np.ndarray, alive: np.ndarray, classes: Classes, table: np.ndarray, rises: np.ndarray
) -> None:
    """Store the `merge_rise` of this slot with every other slot, in the upper triangle of `rises`."""
    for other in others:
        a, b = min(slot, other), max(slot, other)
        rises[a, b] = merge_rise(a, b, alive, classes, table)


def rise_with(slot: int, others: np.ndarray, classes: Classes, table: np.ndarray, rises: np.ndarray) -> None:
    """Update the `merge_rise` of each pair of other slots, after a class has been inserted into `slot`."""
    for counts in (classes.follows, classes.precedes):
        row = counts[slot, others]
        rises[np.ix_(others, others)] += joint(row[:, None], row[None, :], table)


def rise_after_merge(
    a: int, b: int, others: np.ndarray, classes: Classes, table: np.ndarray, rises: np.ndarray
) -> None:
    """Update the `merge_rise` of each pair of other classes, before classes a and b are merged."""
    for counts in (classes.follows, classes.precedes):
        x, y = counts[a, others], counts[b, others]
        separate = joint(x[:, None], x[None, :], table) + joint(y[:, None], y[None, :], table)
        rises[np.ix_(others, others)] += joint((x + y)[:, None], (x + y)[None, :], table) - separate


def cheapest(
    alive: np.ndarray, rises: np.ndarray, classes: Classes, room: np.ndarray, table: np.ndarray
) -> tuple[int, int, float]:
    """The pair of classes with the smallest loss of mutual information that fit into one class, and the loss."""
    losses = np.zeros((len(alive), len(alive)))
    for margin in (classes.first[alive], classes.second[alive]):
        losses += joint(margin[:, None], margin[None, :], table)
    losses -= rises[np.ix_(alive, alive)]
    together = classes.size[alive, None] + classes.size[None, alive]
    fits = np.triu(together <= np.minimum(room[alive, None], room[None, alive]), 1)
    a, b = np.unravel_index(np.argmin(np.where(fits, losses, np.inf)), losses.shape)
    return int(alive[a]), int(alive[b]), float(losses[a, b])
