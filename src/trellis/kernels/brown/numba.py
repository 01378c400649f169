"""The steps of Brown clustering, moving words and merging classes, compiled by numba, on all cores. Without numba, the
same code runs as plain Python.

N(c, d) is how often a word of class d follows a word of class c, and N is the number of all bigrams. Up to a constant,
N times the average mutual information of a partition is Σ f(N(c, d)) - Σ f(N(c, ·)) - Σ f(N(·, d)) with f(n) = n log n,
so that a move or a merge changes few terms.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trellis.kernels import team
from trellis.kernels.brown.state import Bigrams, Classes

try:
    from numba import njit
except ImportError:

    def njit(**options: bool) -> Any:  # type: ignore[no-redef]
        return lambda function: function


Array = np.ndarray
RAISES = 1e-13  # minimum gain of a move as a fraction of f(N), well above rounding errors
WORTH_SHARING = 1 << 18  # cells below which parallelism does not pay


def share(work: Callable[..., None], items: Array, cells: int, *arguments: object) -> None:
    """Call work(items, *arguments), with the items divided among the cores if the work touches many cells."""
    workers = team.size(len(items)) if cells >= WORTH_SHARING else 1
    team.share(lambda worker, workers: work(items[worker::workers], *arguments), workers)


@njit(cache=True)
def xlogx(n: int, table: Array) -> float:
    """f(n) = n log n."""
    return table[n] if n < len(table) else n * math.log(n)


@njit(cache=True)
def rise(n: int, more: int, table: Array) -> float:
    """f(n + more) - f(n), where f(n) = n log n."""
    return xlogx(n + more, table) - xlogx(n, table)


@njit(cache=True)
def add_by_class(begin: int, end: int, words: Array, counts: Array, assignment: Array, into: Array) -> None:
    """Add counts[begin:end] of words[begin:end] to the entries of the words' classes in `into`."""
    for i in range(begin, end):
        c = assignment[words[i]]
        if c >= 0:
            into[c] += counts[i]


@njit(cache=True)
def neighbours(word: int, bigrams: Bigrams, classes: Classes) -> tuple[Array, Array]:
    """How often each class follows the word, and how often it precedes the word: [C], [C]. Repeats of the word itself
    and words without a class are not counted."""
    right = np.zeros(len(classes.size), np.int64)
    left = np.zeros(len(classes.size), np.int64)
    b, a = bigrams, classes.assignment
    add_by_class(b.right_start[word], b.right_start[word + 1], b.right_word, b.right_count, a, right)
    add_by_class(b.left_start[word], b.left_start[word + 1], b.left_word, b.left_count, a, left)
    return right, left


@njit(cache=True)
def add_rises(gains: Array, row: Array, more: int, own: int, table: Array) -> None:
    """Add f(row[b] + more) - f(row[b]) to gains[b] for every class b, where f(n) = n log n. row[own], the entry of the
    word's own class, already includes `more`."""
    at_own = gains[own] + rise(row[own] - more, more, table)
    if row.max() + more < len(table):
        for b in range(len(gains)):
            gains[b] += table[row[b] + more] - table[row[b]]
    else:
        for b in range(len(gains)):
            gains[b] += rise(row[b], more, table)
    gains[own] = at_own


@njit(cache=True)
def insertion_gains(word: int, bigrams: Bigrams, classes: Classes, table: Array) -> Array:
    """The gain in mutual information [C] of inserting the word into each class, after removing it from its own."""
    own, repeats = classes.assignment[word], bigrams.repeats[word]
    right, left = neighbours(word, bigrams, classes)
    gains = np.zeros(len(classes.size))
    right_of_own, left_of_own = classes.precedes[own] - left, classes.follows[own] - right
    right_of_own[own] -= repeats
    left_of_own[own] -= repeats
    for c in range(len(gains)):
        if right[c]:
            add_rises(gains, right_of_own if c == own else classes.precedes[c], right[c], own, table)
        if left[c]:
            add_rises(gains, left_of_own if c == own else classes.follows[c], left[c], own, table)
    for b in range(len(gains)):
        there = b == own
        inside = classes.follows[b, b] - there * (right[b] + left[b] + repeats)
        gains[b] += xlogx(inside + right[b] + left[b] + repeats, table) - xlogx(inside + right[b], table)
        gains[b] += xlogx(inside, table) - xlogx(inside + left[b], table)
        gains[b] -= rise(classes.first[b] - there * bigrams.first[word], bigrams.first[word], table)
        gains[b] -= rise(classes.second[b] - there * bigrams.second[word], bigrams.second[word], table)
    return gains


@njit(cache=True)
def best_class(word: int, gains: Array, classes: Classes, room: Array) -> int:
    """The class with the largest gain among the word's own class and the classes with remaining capacity."""
    own, best = classes.assignment[word], -1
    for b in range(len(gains)):
        open_to_word = room[b] > 0 if b == own else classes.size[b] < room[b]
        if open_to_word and (best < 0 or gains[b] > gains[best]):
            best = b
    return best


@njit(cache=True, nogil=True)
def choose(
    items: Array, words: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array, targets: Array
) -> None:
    """Write the best class of each item to `targets`; an item is an index into `words`."""
    for i in items:
        targets[i] = best_class(words[i], insertion_gains(words[i], bigrams, classes, table), classes, room)


def targets_of(words: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array) -> Array:
    """The best class of each word, all computed with the same class table."""
    targets = np.empty(len(words), np.int64)
    distinct = bigrams.right_start[words + 1] - bigrams.right_start[words]
    cells = int(distinct.sum()) * len(room)
    share(choose, np.arange(len(words)), cells, words, bigrams, classes, room, table, targets)
    return targets


@njit(cache=True)
def add_word(word: int, c: int, sign: int, right: Array, left: Array, bigrams: Bigrams, classes: Classes) -> None:
    """Add (sign 1) or subtract (sign -1) the word's counts to or from class c."""
    for d in range(len(right)):
        classes.follows[c, d] += sign * right[d]
        classes.follows[d, c] += sign * left[d]
        classes.precedes[c, d] += sign * left[d]
        classes.precedes[d, c] += sign * right[d]
    classes.follows[c, c] += sign * bigrams.repeats[word]
    classes.precedes[c, c] += sign * bigrams.repeats[word]
    classes.first[c] += sign * bigrams.first[word]
    classes.second[c] += sign * bigrams.second[word]
    classes.size[c] += sign


@njit(cache=True)
def move(word: int, target: int, bigrams: Bigrams, classes: Classes) -> None:
    """Move the word from its class to the target."""
    right, left = neighbours(word, bigrams, classes)
    add_word(word, classes.assignment[word], -1, right, left, bigrams, classes)
    add_word(word, target, 1, right, left, bigrams, classes)
    classes.assignment[word] = target


@njit(cache=True)
def move_all(words: Array, targets: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array) -> None:
    """Move each word to its target, or to the best class with remaining capacity."""
    for i in range(len(words)):
        target = targets[i]
        if classes.size[target] >= room[target]:
            target = best_class(words[i], insertion_gains(words[i], bigrams, classes, table), classes, room)
        move(words[i], target, bigrams, classes)


@njit(cache=True)
def move_improving(words: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array) -> float:
    """Move words one by one to their best class if that raises the mutual information; returns the total gain."""
    gained, enough = 0.0, RAISES * xlogx(classes.first.sum(), table)
    for word in words:
        own = classes.assignment[word]
        if classes.size[own] > 1:
            gains = insertion_gains(word, bigrams, classes, table)
            best = best_class(word, gains, classes, room)
            if gains[best] - gains[own] > enough:
                move(word, best, bigrams, classes)
                gained += gains[best] - gains[own]
    return gained


def place(words: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array) -> None:
    """Move each word from a class without capacity to the best class with remaining capacity. All words choose in
    parallel."""
    move_all(words, targets_of(words, bigrams, classes, room, table), bigrams, classes, room, table)


def exchange(words: Array, bigrams: Bigrams, classes: Classes, room: Array, table: Array) -> float:
    """Find the best class of all words in parallel; then move the words whose class would change, one by one, if this
    still raises the mutual information. Returns the gain in nats."""
    words = words[classes.size[classes.assignment[words]] > 1]
    restless = targets_of(words, bigrams, classes, room, table) != classes.assignment[words]
    return move_improving(words[restless], bigrams, classes, room, table)


@njit(cache=True)
def joint(x: int, y: int, table: Array) -> float:
    """f(x + y) - f(x) - f(y), where f(n) = n log n."""
    if x == 0 or y == 0:
        return 0.0
    return xlogx(x + y, table) - xlogx(x, table) - xlogx(y, table)


@njit(cache=True)
def merge_rise(a: int, b: int, shared: Array, classes: Classes, table: Array) -> float:
    """The increase of Σ f(N(c, d)) when classes a and b are merged. `shared` contains all classes adjacent to both."""
    total = 0.0
    for c in shared:
        if c != a and c != b:
            right = joint(classes.follows[a, c], classes.follows[b, c], table)
            total += right + joint(classes.precedes[a, c], classes.precedes[b, c], table)
    n = classes.follows
    separate = xlogx(n[a, a], table) + xlogx(n[a, b], table) + xlogx(n[b, a], table) + xlogx(n[b, b], table)
    return total + (xlogx(n[a, a] + n[a, b] + n[b, a] + n[b, b], table) - separate)


@njit(cache=True, nogil=True)
def fill_some_rises(others: Array, slot: int, shared: Array, classes: Classes, table: Array, rises: Array) -> None:
    for other in others:
        a, b = min(slot, other), max(slot, other)
        rises[a, b] = merge_rise(a, b, shared, classes, table)


def fill_rises(slot: int, others: Array, alive: Array, classes: Classes, table: Array, rises: Array) -> None:
    """Store the increase of Σ f(N(c, d)) for merging each of `others` with this slot (see `merge_rise`)."""
    shared = alive[(classes.follows[slot, alive] > 0) | (classes.precedes[slot, alive] > 0)]
    share(fill_some_rises, others, len(others) * len(shared), slot, shared, classes, table, rises)


@njit(cache=True, nogil=True)
def rise_with_some(rows: Array, slot: int, others: Array, classes: Classes, table: Array, rises: Array) -> None:
    for i in rows:
        c = others[i]
        for counts in (classes.follows, classes.precedes):
            x = counts[slot, c]
            if x:
                for d in others[i + 1 :]:
                    rises[c, d] += joint(x, counts[slot, d], table)


def rise_with(slot: int, others: Array, classes: Classes, table: Array, rises: Array) -> None:
    """Update `rises` (see `merge_rise`) for each pair of other slots, after a class has been inserted in this slot."""
    cells = int((classes.follows[slot] > 0).sum() + (classes.precedes[slot] > 0).sum()) * len(others)
    share(rise_with_some, np.arange(len(others)), cells, slot, others, classes, table, rises)


@njit(cache=True, nogil=True)
def rise_some_after_merge(
    rows: Array, a: int, b: int, others: Array, classes: Classes, table: Array, rises: Array
) -> None:
    for i in rows:
        c = others[i]
        for counts in (classes.follows, classes.precedes):
            x, y = counts[a, c], counts[b, c]
            if x + y:
                for d in others[i + 1 :]:
                    v, w = counts[a, d], counts[b, d]
                    if v + w:
                        separate = joint(x, v, table) + joint(y, w, table)
                        rises[c, d] += joint(x + y, v + w, table) - separate


def rise_after_merge(a: int, b: int, others: Array, classes: Classes, table: Array, rises: Array) -> None:
    """Update `rises` (see `merge_rise`) for each pair of other classes, before classes a and b are merged."""
    share(rise_some_after_merge, np.arange(len(others)), len(others) ** 2, a, b, others, classes, table, rises)


@njit(cache=True, nogil=True)
def find_partners(
    rows: Array, alive: Array, rises: Array, classes: Classes, room: Array, table: Array, partners: Array, losses: Array
) -> None:
    """For each class, the later class with which it can merge at the smallest loss, and this loss (infinite if there is
    no such class)."""
    for i in rows:
        a, partners[i], losses[i] = alive[i], -1, np.inf
        for b in alive[i + 1 :]:
            if classes.size[a] + classes.size[b] <= min(room[a], room[b]):
                margins = joint(classes.first[a], classes.first[b], table)
                loss = margins + joint(classes.second[a], classes.second[b], table) - rises[a, b]
                if loss < losses[i]:
                    partners[i], losses[i] = b, loss


def cheapest(alive: Array, rises: Array, classes: Classes, room: Array, table: Array) -> tuple[int, int, float]:
    """The two classes whose merger fits the capacity and loses the least mutual information, and this loss."""
    partners, losses = np.empty_like(alive), np.empty(len(alive))
    rows, cells = np.arange(len(alive)), len(alive) ** 2
    share(find_partners, rows, cells, alive, rises, classes, room, table, partners, losses)
    best = np.argmin(losses)
    return int(alive[best]), int(partners[best]), float(losses[best])
