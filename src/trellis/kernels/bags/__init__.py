"""The scores of the labels of each token, and the gradient of the weights. A score is the sum of the weights of the
token's attributes for this label; many pairs of an attribute and a label have no weight.

On a CPU, numba is used if it is installed. Otherwise, torch uses a dense table of the attributes that occur. The numba
code stores the weights of an attribute with many labels as a row of a table, and adds them in vector instructions."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from trellis.kernels import team
from trellis.kernels.optional import installed

kernels = partial(installed, "kernels.bags.numba")
SHARE = 1 << 12  # with fewer tokens, a second thread costs more than it saves
MANY, VECTOR = 4, 8  # from VECTOR labels on, an attribute with weights for 1 in MANY labels has a row of the table


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


class Rows(NamedTuple):
    """The attributes with many labels, as rows of a table [R, labels]."""

    place: Tensor  # [F] int32: the row of an attribute, or -1
    pairs: Tensor  # [Q]: the pairs of these attributes
    entries: Tensor  # [Q]: their positions in the flat table
    shape: tuple[int, int]

    @classmethod
    def choose(cls, pairs: Pairs, labels: int) -> Rows:
        counts = pairs.first.diff()
        many = (counts * MANY >= labels if labels >= VECTOR else counts < 0).nonzero()[:, 0]
        place = torch.full((len(counts),), -1, dtype=torch.int32)
        place[many] = torch.arange(len(many), dtype=torch.int32)
        return cls(place, *pairs.entries(many, labels), (len(many), labels))

    def table(self, weights: Tensor) -> Tensor:
        """The weights [P] as a table, zero for labels without a weight."""
        table = np.zeros(self.shape, weights.numpy().dtype)
        table.ravel()[self.entries.numpy()] = weights.numpy()[self.pairs.numpy()]
        return torch.from_numpy(table)


class Sums(NamedTuple):
    """The gradient of the weights, summed by each thread over its tokens."""

    pairs: Tensor  # [threads, P] float64
    rows: Tensor  # [threads, R, labels] float64

    def total(self, rows: Rows) -> Tensor:
        """The sums of all threads: [P]."""
        chosen, entries = (index.to(self.pairs.device) for index in (rows.pairs, rows.entries))
        return self.pairs.sum(0).index_add_(0, chosen, self.rows.sum(0).flatten()[entries])


def concatenated_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate ranges of integers, each given by its start and its length."""
    before = lengths.cumsum(0) - lengths
    return torch.repeat_interleave(starts - before, lengths) + torch.arange(int(lengths.sum()), device=starts.device)


def score(bags: Bags, pairs: Pairs, rows: Rows, weights: Tensor, labels: int) -> Tensor:
    """The sum of the weights [P] of every token's attributes, by label: [N, labels]."""
    if not compiled(weights):
        used, ids = bags.ids.unique(return_inverse=True)
        chosen, entries = pairs.entries(used, labels)
        table = weights.new_zeros(len(used) * labels).index_put_((entries,), weights[chosen])
        return embedding_bag(ids, table.view(-1, labels), bags.offsets, mode="sum", include_last_offset=True)
    scores = torch.from_numpy(np.zeros((len(bags.offsets) - 1, labels), weights.numpy().dtype))
    share("score", workers(scores), *bags, *pairs, weights, rows.place, rows.table(weights), scores)
    return scores


def new_sums(weights: Tensor, rows: Rows) -> Sums:
    """`Sums` of zeros."""
    threads = torch.get_num_threads() if compiled(weights) else 1
    shapes = (threads, len(weights)), (threads, *rows.shape)
    return Sums(*(weights.new_zeros(shape, dtype=torch.float64) for shape in shapes))


def collect(bags: Bags, pairs: Pairs, rows: Rows, slopes: Tensor, sums: Sums) -> None:
    """Add the gradient of the weights to `sums`, given the gradient of the scores, `slopes` [N, L]."""
    if compiled(slopes):
        return share("collect", workers(slopes), *bags, *pairs, rows.place, slopes, *sums)
    used, ids = bags.ids.unique(return_inverse=True)
    chosen, entries = pairs.entries(used, slopes.shape[1])
    table = slopes.new_zeros(len(used), slopes.shape[1])
    table.index_add_(0, ids, slopes.repeat_interleave(bags.offsets.diff(), 0))
    sums.pairs[0].index_add_(0, chosen, table.flatten()[entries].to(sums.pairs))


def compiled(values: Tensor) -> bool:
    return values.device.type == "cpu" and kernels() is not None


def workers(rows: Tensor) -> int:
    return team.size(-(-len(rows) // SHARE))


def share(kernel: str, threads: int, *given: Tensor) -> None:
    team.share(getattr(kernels(), kernel), threads, *(part.numpy() for part in given))
