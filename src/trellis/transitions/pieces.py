"""Products with the matrix A of a softmax transition on a CPU, one piece of A at a time, which fits in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trellis.kernels.lse.tiled import COLUMNS, ROWS, product, slices

if TYPE_CHECKING:
    from trellis.transitions.softmax import SoftmaxEntry


def pieces(
    entry: SoftmaxEntry, before: Tensor | None = None, after: Tensor | None = None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield A[before, after] in pieces, without gradients: the slices of rows and columns, and the piece. None means
    all states."""
    height = entry.num_rows if before is None else len(before)
    width = entry.num_states if after is None else len(after)
    for rows in slices(height, ROWS):
        sources = named(before, rows)
        norms = entry.log_norm[rows] if before is None else entry.norms(before[rows])
        queries = entry.queries[sources].to(entry.low.dtype)
        for columns in slices(width, COLUMNS):
            targets = named(after, columns)
            logits = entry.kept(product(queries, entry.low[targets].T), sources, targets)
            yield rows, columns, logits.sub_(norms.unsqueeze(-1)).exp_()


def named(states: Tensor | None, part: slice) -> Tensor | slice:
    """The states at the positions `part`. If they are consecutive, the result is a slice, which needs no copy."""
    if states is None:
        return part
    some = states[part]
    if not bool((some[1:] - some[:-1] == 1).all()):
        return some
    return slice(int(some[0]), int(some[-1]) + 1)


def block(entry: SoftmaxEntry, before: Tensor, after: Tensor) -> Tensor:
    """A[before, after] for some states of adjacent steps: [n], [m] -> [n, m]."""
    out = entry.keys.new_empty(len(before), len(after))
    for rows, columns, piece in pieces(entry, before, after):
        out[rows, columns] = piece
    return out


def moved(entry: SoftmaxEntry, probs: Tensor) -> Tensor:
    """probs @ A, computed without the rows of states whose probability is zero: [..., R] -> [..., K]."""
    total = probs.new_zeros(*probs.shape[:-1], entry.num_states)
    states = occupied(probs)
    for rows, columns, piece in pieces(entry, states):
        total[..., columns] += probs[..., states[rows]] @ piece
    return total


def pulled(entry: SoftmaxEntry, message: Tensor) -> Tensor:
    """A @ message, computed without the columns at which the message is zero: [..., K] -> [..., R]."""
    total = message.new_zeros(*message.shape[:-1], entry.num_rows)
    states = occupied(message)
    for rows, columns, piece in pieces(entry, None, states):
        total[..., rows] += message[..., states[columns]] @ piece.T
    return total


def occupied(values: Tensor) -> Tensor:
    """The states at which any of the values [..., K] is not zero: [n]."""
    return (values != 0).reshape(-1, values.shape[-1]).any(0).nonzero().flatten()


def crossed(
    entry: SoftmaxEntry, probs: Tensor, scores: Tensor, ahead: Tensor | None, report: Callable[[float], object]
) -> tuple[Tensor, Tensor, Tensor]:
    """Three products with A in one pass over it: probs @ A, max_z scores(z) + log A(z, .), and A @ ahead, which is zero
    if `ahead` is None. `report` is called with the share of the work that is done."""
    moved, pulled = torch.zeros_like(probs), torch.zeros_like(probs)
    best = torch.full_like(scores, -torch.inf)
    for rows, columns, piece in pieces(entry):
        moved[columns] += probs[rows] @ piece
        if ahead is not None:
            pulled[rows] += piece @ ahead[columns]
        best[columns] = torch.maximum(best[columns], best_sums(piece, scores[rows]))
        if columns.stop == len(scores):
            report(rows.stop / len(probs))
    return moved, best, pulled


def best_sums(piece: Tensor, scores: Tensor) -> Tensor:
    """For each z', the max over z of scores(z) + log A(z, z'), for a piece of A: [n, m], [n] -> [m]. It is computed as
    the max of exp(scores(z)) A(z, z'), without the logarithm of the piece, unless this may have underflowed."""
    top, info = scores.max(), torch.finfo(piece.dtype)
    best = (piece * (scores - top).exp().unsqueeze(-1)).amax(0)
    if bool((best > info.tiny / info.eps).all()):
        return best.log() + top
    return piece.log().add_(scores.unsqueeze(-1)).amax(0)
