"""States from the contexts of a text: the initial clones of each symbol are the most informative suffixes that end with
it, as in a prediction suffix tree (Ron, Singer and Tishby 1996)."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.emissions import Partition
from trellis.families.hmm.parameters.table import TableParams
from trellis.parts import Parts
from trellis.transitions import Dense

Array = NDArray[np.int64]
DEEPEST, RAREST = 8, 8  # maximum length of a context, and its minimum count
MOST_TOKENS = 4_000_000  # contexts are taken from this many tokens at the beginning of the text
PRICE = 3.0  # nats that a context must gain for each distinct symbol that follows it


class Level(NamedTuple):
    """The contexts of one length; a parent is a context without its oldest symbol."""

    ids: Array  # [N]: the context that ends at each token, -1 for none
    parents: Array  # [n]: indices into the level above
    ends: Array  # [n]: last symbols
    gains: NDArray[np.float64]  # [n]: nats gained by predicting the next symbol from the context, not from its parent


def context_states(tokens: Array, num_symbols: int, clones: int) -> tuple[Array, Array]:
    """The state of every token, which is the longest chosen context that ends there, and the number of states of every
    symbol, at most `clones`. States are ordered by symbol."""
    levels = grow(tokens.astype(np.int64), num_symbols)
    best = [level.gains.copy() for level in levels]
    for depth in range(len(levels) - 1, 0, -1):  # a context is as useful as the longer contexts that extend it
        np.maximum.at(best[depth - 1], levels[depth].parents, best[depth])
    ends = np.concatenate([level.ends for level in levels])
    useful = np.concatenate(best)
    order = np.lexsort((np.arange(len(ends)), -useful, ends))
    first = np.searchsorted(ends[order], np.arange(num_symbols))
    ranks = np.empty(len(ends), np.int64)
    ranks[order] = np.arange(len(ends)) - first[ends[order]]
    chosen = (ranks < clones) & (useful > 0)
    sizes = np.bincount(ends[chosen], minlength=num_symbols)
    numbers = np.where(chosen, ranks + (np.cumsum(sizes) - sizes)[ends], -1)
    states, begin = np.full(len(tokens), -1), 0
    for level in levels:
        here = np.where(level.ids >= 0, numbers[begin + level.ids], -1)
        states, begin = np.where(here >= 0, here, states), begin + len(level.ends)
    return states, sizes


def grow(tokens: Array, num_symbols: int) -> list[Level]:
    """All contexts that occur at least RAREST times, by length."""
    symbols = np.arange(num_symbols)
    levels = [Level(tokens, np.zeros_like(symbols), symbols, np.full(num_symbols, np.inf))]
    for length in range(1, DEEPEST):
        above = levels[-1].ids
        where = np.flatnonzero(above[length:] >= 0) + length
        keys, inverse, counts = np.unique(
            above[where] * num_symbols + tokens[where - length], return_inverse=True, return_counts=True
        )
        common = counts >= RAREST
        if not common.any():
            break
        ids = np.full(len(tokens), -1)
        ids[where] = np.where(common, np.cumsum(common) - 1, -1)[inverse]
        parents = keys[common] // num_symbols
        gains = gained(ids, above, parents, tokens, num_symbols)
        levels.append(Level(ids, parents, levels[-1].ends[parents], gains))
    return levels


def gained(ids: Array, above: Array, parents: Array, tokens: Array, num_symbols: int) -> NDArray[np.float64]:
    """For each context, the log-likelihood ratio of the symbols that follow it, given the context and given its parent,
    minus PRICE for each distinct one of these symbols."""
    pairs, counts = following(ids, tokens, num_symbols)
    shorter, their_counts = following(above, tokens, num_symbols)
    contexts, symbols = pairs // num_symbols, pairs % num_symbols
    totals = np.bincount(contexts, counts, len(parents))
    their_totals = np.bincount(shorter // num_symbols, their_counts)
    place = np.searchsorted(shorter, parents[contexts] * num_symbols + symbols)
    ratio = counts / totals[contexts] / (their_counts[place] / their_totals[parents[contexts]])
    return np.bincount(contexts, counts * np.log(ratio) - PRICE, len(parents)).astype(np.float64)


def following(ids: Array, tokens: Array, num_symbols: int) -> tuple[Array, Array]:
    """The distinct pairs of a context and the symbol that follows it, and how often each occurs. A pair is the number
    context * num_symbols + symbol; the numbers are ascending."""
    where = np.flatnonzero(ids[:-1] >= 0)
    return np.unique(ids[where] * num_symbols + tokens[where + 1], return_counts=True)


@torch.no_grad()
def initialise(params: TableParams, partition: Partition, states: Array) -> None:
    """Set the start and transition probabilities to those of a state sequence, with Witten-Bell smoothing: the
    transitions of a state back off to those of all states of its symbol, and these to the frequencies of all states."""
    size, path = partition.num_states, torch.from_numpy(states)
    moves = torch.zeros(size * size).index_add_(0, path[:-1] * size + path[1:], torch.ones(len(path) - 1))
    moves = moves.view(size, size)
    frequency = (path.bincount(minlength=size) + 1.0) / (len(path) + size)
    classes = partition.state_class()
    by_symbol = torch.zeros(partition.num_classes, size).index_add_(0, classes, moves)
    lower = backed_off(by_symbol, frequency.expand_as(by_symbol))
    emission = params.parts().emission
    params.write(Parts(frequency, Dense(backed_off(moves, lower[classes])), emission))


def backed_off(counts: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """Witten-Bell smoothing: (counts + n lower) / (total + n) for each row, where n >= 1 is the number of nonzero
    counts, and `lower` are the probabilities to which the row backs off."""
    kinds = (counts > 0).sum(-1, keepdim=True).clamp(min=1)
    return (counts + kinds * lower) / (counts.sum(-1, keepdim=True) + kinds)
