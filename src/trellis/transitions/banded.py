"""Transitions within a band around the diagonal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from trellis.dirichlet import most_probable
from trellis.kernels.rows import take
from trellis.transitions.base import Entry, Operator, Summable, invert
from trellis.transitions.lowrank import normalise
from trellis.transitions.tiled import Tiled
from trellis.transitions.varying import PerStep, TimeVarying
from trellis.types import Groups


class Banded(Tiled, Summable):
    """A transition matrix A that is zero outside a band of width w: A[z, z + o - w // 2] = probs[z, o] for 0 <= o < w.

    probs and the sufficient statistics are [K, w]. Products are computed in tiles [w, 2w], at a cost of O(K w) per
    step."""

    def __init__(self, probs: Tensor) -> None:
        self.probs, self.reach = probs, probs.shape[1] // 2
        self.num_rows, self.width, self.device = *probs.shape, probs.device
        self.num_states = self.num_rows
        self.band = tile_band(probs)

    def row_tiles(self, values: Tensor) -> Tensor:
        """Cut N vectors over K states into n tiles of w states: [..., K] -> [n, N, w]."""
        flat = values.reshape(-1, self.num_states)
        return pad(flat, (0, -self.num_states % self.width)).unflatten(-1, (-1, self.width)).transpose(0, 1)

    def column_tiles(self, values: Tensor) -> Tensor:
        """For each of n tiles of w rows, the entries of N vectors in the columns of the tile: [..., K] -> [n, N, 2w].

        Columns before the first or after the last state get zeros."""
        beyond = -self.num_states % self.width + self.width - self.reach
        padded = pad(values.reshape(-1, self.num_states), (self.reach, beyond))
        return padded.unfold(-1, 2 * self.width, self.width).transpose(0, 1)

    def forward(self, probs: Tensor) -> Tensor:
        sent = (self.row_tiles(probs) @ self.band).transpose(0, 1)  # [N, n, 2w]
        near, far = (half.flatten(1) for half in sent.split(self.width, -1))
        total = pad(near, (0, self.width)) + pad(far, (self.width, 0))
        return total[:, self.reach : self.reach + self.num_states].view(probs.shape)

    def backward(self, message: Tensor) -> Tensor:
        pulled = self.column_tiles(message) @ self.band.mT  # [n, N, w]
        return pulled.transpose(0, 1).flatten(1)[:, : self.num_states].reshape(message.shape)

    @property
    def statistics_shape(self) -> torch.Size:
        return self.probs.shape

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        pairs = self.row_tiles(left).mT @ self.column_tiles(right)  # [n, w, 2w]
        straight = pad(pairs.flatten(1), (0, self.width)).unflatten(-1, (self.width, -1))[..., : self.width]
        return self.probs * straight.flatten(0, 1)[: self.num_states]

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        """The transitions between the k live states of adjacent steps, at a cost of O(k min(k, w)) per step. If w < k,
        only entries within the band are stored."""
        if self.width >= ids.shape[-1]:
            return super().between(ids, groups)
        before, after = ids[:, :-1], ids[:, 1:]
        ascending, order = after.sort(-1)
        column = before.unsqueeze(-1) + torch.arange(self.width, device=ids.device) - self.reach
        place = torch.searchsorted(ascending, column.flatten(-2)).clamp(max=ids.shape[-1] - 1)
        inside = ascending.gather(-1, place).view_as(column) == column
        return PerStep(BandStep, take(self.probs, before) * inside, order.gather(-1, place).view_as(column))

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return band_blocks(self.probs, before, *offsets(before, after, self.width))

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        offset, inside = offsets(before, after, self.width)
        index = (before.unsqueeze(-1).expand_as(pairs), offset)
        return torch.zeros_like(self.probs).index_put(index, pairs * inside, accumulate=True)

    def row_statistics(self, statistics: Tensor) -> Tensor:
        return statistics.masked_fill(self.probs == 0, -torch.inf)

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Banded:
        return Banded(most_probable(statistics, pseudocount, self.probs))

    def rows(self, states: Tensor) -> Tensor:
        return self.blocks(states, torch.arange(self.num_states, device=self.device))

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return states + invert(self.probs[states], uniform) - self.reach

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        offset = torch.arange(self.width - 1, -1, -1, device=self.device)  # so that z is ascending
        before = states.unsqueeze(-1) - offset + self.reach
        inside = (before >= 0) & (before < self.num_states)
        before = before.clamp(0, self.num_states - 1)
        chosen = invert(weights.gather(-1, before) * self.probs[before, offset] * inside, uniform)
        return before.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


class BandStep(Operator):
    """The entries probs [..., k, w] of a band between the k live states of adjacent steps. places [..., k, w] holds the
    index of each target among the live states of the next step."""

    def __init__(self, probs: Tensor, places: Tensor) -> None:
        self.probs, self.places, self.num_states = probs, places, probs.shape[-2]

    def forward(self, probs: Tensor) -> Tensor:
        sent = (probs.unsqueeze(-1) * self.probs).flatten(-2)
        return sent.new_zeros(*sent.shape[:-1], self.num_states).scatter_add(-1, self.flat_places(sent), sent)

    def backward(self, message: Tensor) -> Tensor:
        pulled = message.gather(-1, self.flat_places(message)).unflatten(-1, self.probs.shape[-2:])
        return (pulled * self.probs).sum(-1)

    def flat_places(self, like: Tensor) -> Tensor:
        """`places` as [..., k w], expanded to the leading dimensions of `like`."""
        return self.places.flatten(-2).expand(*like.shape[:-1], -1)

    def dense(self) -> Tensor:
        matrix = self.probs.new_zeros(*self.probs.shape[:-1], self.num_states)
        return matrix.scatter_add(-1, self.places, self.probs)


class BandEntry(Entry):
    """Transitions within a band, from the states `named` [R] to the states `kept` [K']. probs [R, w] holds the band
    over all states, with zeros at those that are not kept."""

    def __init__(self, probs: Tensor, named: Tensor, kept: Tensor, all_states: int) -> None:
        self.probs, self.named, self.kept, self.all_states, self.num_states = probs, named, kept, all_states, len(kept)

    def forward(self, probs: Tensor) -> Tensor:
        band = self.probs.new_zeros(self.all_states, self.probs.shape[1]).index_copy(0, self.named, self.probs)
        before = probs.new_zeros(*probs.shape[:-1], self.all_states).index_add(-1, self.named, probs)
        return Banded(band).forward(before)[..., self.kept]

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return band_blocks(self.probs, before, *offsets(self.named[before], self.kept[after], self.probs.shape[1]))


def tile_band(probs: Tensor) -> Tensor:
    """A band [K, w] as n dense tiles, each of w rows and the 2w columns that these rows can reach: -> [n, w, 2w]."""
    states, width = probs.shape
    rows = pad(probs, (0, width + 1, 0, -states % width))
    skewed = rows.view(-1, width * (2 * width + 1))[:, :-width]
    return skewed.unflatten(-1, (width, 2 * width))


def offsets(before: Tensor, after: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The offset within the band of each pair of states from `before` [..., k] and `after` [..., k'], and whether the
    pair is inside the band. Both results are [..., k, k']."""
    offset = after.unsqueeze(-2) - before.unsqueeze(-1) + width // 2
    return offset.clamp(0, width - 1), (offset >= 0) & (offset < width)


def band_blocks(probs: Tensor, rows: Tensor, offset: Tensor, inside: Tensor) -> Tensor:
    """Blocks [..., k, k'] of the dense matrix: probs[row, offset] inside the band of each row, and zero outside."""
    return take(probs.flatten(), rows.unsqueeze(-1) * probs.shape[1] + offset) * inside


def band_probs(log_weights: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The normalised rows [K', w] of a band between the states `kept` [K'], and the log [K'] of each row's sum before
    normalisation. log_weights is [K, w]. `kept` is in ascending order; None means all states."""
    num_states, width = log_weights.shape
    kept = torch.arange(num_states, device=log_weights.device) if kept is None else kept
    slots = torch.arange(width, device=kept.device) - width // 2
    place = torch.arange(len(kept), device=kept.device).unsqueeze(-1) + slots
    offset = kept[place.clamp(0, len(kept) - 1)] - kept.unsqueeze(-1) + width // 2
    inside = (place >= 0) & (place < len(kept)) & (offset >= 0) & (offset < width)
    logits = take(log_weights, kept).gather(-1, offset.clamp(0, width - 1)).masked_fill(~inside, -torch.inf)
    return normalise(logits, -1)


def enter_band(log_weights: Tensor, rows: Tensor, kept: Tensor | None = None) -> tuple[BandEntry, Tensor]:
    """The normalised band from the states `rows` [R] to the states `kept` [K'], and the log [R] of each row's sum
    before normalisation. If `kept` is None, all states are kept."""
    num_states, width = log_weights.shape
    everything = torch.arange(num_states, device=log_weights.device)
    kept = everything if kept is None else kept
    keeps = torch.zeros_like(everything, dtype=torch.bool).index_fill(0, kept, True)
    column = rows.unsqueeze(-1) + torch.arange(width, device=kept.device) - width // 2
    inside = (column >= 0) & (column < num_states) & keeps[column.clamp(0, num_states - 1)]
    probs, log_norm = normalise(take(log_weights, rows).masked_fill(~inside, -torch.inf), -1)
    return BandEntry(probs, rows, kept, num_states), log_norm
