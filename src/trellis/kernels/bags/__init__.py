"""Scores of tokens as sums over bags of attributes with sparse weights, and the sums that are their gradient.

Compiled by numba on a CPU if installed; otherwise through a dense table of the attributes in use."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from trellis.kernels import team
from trellis.kernels.optional import installed

kernels = partial(installed, "kernels.bags.numba")
SHARE = 1 << 12  # tokens below which a second thread does not pay


class Bags(NamedTuple):
    """The attributes of N tokens, concatenated."""

    ids: Tensor  # [M] int32
    offsets: Tensor  # [N + 1] int64: bounds of each token's attributes


class Pairs(NamedTuple):
    """The pairs of an attribute and a label that have a weight, sorted by attribute."""

    first: Tensor  # [F + 1] int64: bounds of each attribute's pairs
    labels: Tensor  # [P] int32

    def entries(self, attributes: Tensor, labels: int) -> tuple[Tensor, Tensor]:
        """The pairs of some attributes [U], and their positions in a flat table [U, labels]."""
        counts = (self.first[1:] - self.first[:-1])[attributes]
        chosen = concatenated_ranges(self.first[attributes], counts)
        return chosen, torch.repeat_interleave(counts) * labels + self.labels[chosen]


def concatenated_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate the ranges start, start + 1, ..."""
    before = lengths.cumsum(0) - lengths
    return torch.repeat_interleave(starts - before, lengths) + torch.arange(int(lengths.sum()), device=starts.device)


def score(bags: Bags, pairs: Pairs, weights: Tensor, labels: int) -> Tensor:
    """The sum of the weights [P] of every token's attributes, by label: [N, labels]."""
    if not compiled(weights):
        used, ids = bags.ids.unique(return_inverse=True)
        chosen, entries = pairs.entries(used, labels)
        table = weights.new_zeros(len(used) * labels).index_put_((entries,), weights[chosen])
        return embedding_bag(ids, table.view(-1, labels), bags.offsets, mode="sum", include_last_offset=True)
    scores = weights.new_zeros(len(bags.offsets) - 1, labels)
    share("score", workers(scores), *bags, *pairs, weights, scores)
    return scores


def new_sums(weights: Tensor) -> Tensor:
    """Zero sums of slopes for every thread: [threads, P] float64."""
    return weights.new_zeros(torch.get_num_threads() if compiled(weights) else 1, len(weights), dtype=torch.float64)


def collect(bags: Bags, pairs: Pairs, slopes: Tensor, sums: Tensor) -> None:
    """Add the gradient of the weights, given that of the scores [N, L], to sums [threads, P]."""
    if compiled(slopes):
        return share("collect", workers(slopes), *bags, *pairs, slopes, sums)
    used, ids = bags.ids.unique(return_inverse=True)
    chosen, entries = pairs.entries(used, slopes.shape[1])
    table = slopes.new_zeros(len(used), slopes.shape[1])
    table.index_add_(0, ids, slopes.repeat_interleave(bags.offsets.diff(), 0))
    sums[0].index_add_(0, chosen, table.flatten()[entries].to(sums))


def compiled(values: Tensor) -> bool:
    return values.device.type == "cpu" and kernels() is not None


def workers(rows: Tensor) -> int:
    return team.size(-(-len(rows) // SHARE))


def share(kernel: str, threads: int, *given: Tensor) -> None:
    team.share(getattr(kernels(), kernel), threads, *(part.numpy() for part in given))
