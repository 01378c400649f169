"""A random mask that is never stored: a hash of a row key and a column key determines entry (i, j).

The torch code here and the Triton kernels compute the same hash on every device. Keys derive from a seed and a step, so
that a resumed run uses the same masks.
"""

from typing import NamedTuple

from torch import Tensor

from trellis.kernels.optional import installed

WORD = 0xFFFFFFFF
LARGEST_CLASS = 2048  # ids that a program sorts
ROWS, COLUMNS, STATES, FEATURES = 0x9E3779B9, 0x7F4A7C15, 0x2545F491, 0x6C8E9CF5  # purposes of keys


class Mask(NamedTuple):
    """A random mask of R rows and S columns. Entry (i, j) is dropped if hash(rows[i] + columns[j]) < rate * 2^32."""

    rows: Tensor  # [R] int64 below 2^32: the keys of the rows
    columns: Tensor  # [S] int64 below 2^32: the keys of the columns
    rate: float

    @property
    def threshold(self) -> int:
        return int(self.rate * 2**32)

    def keeps(self, rows: slice | Tensor = slice(None), columns: slice | Tensor = slice(None)) -> Tensor:
        """Whether each entry of some rows and columns is kept: [..., k], [..., k'] -> [..., k, k'] bool."""
        return mix(self.rows[rows].unsqueeze(-1) + self.columns[columns].unsqueeze(-2)) >= self.threshold


def mix(value: Tensor) -> Tensor:
    """A 32-bit integer hash (the finaliser of MurmurHash3) in int64."""
    value = value & WORD
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & WORD
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & WORD
    return value ^ (value >> 16)


def keys(seed: int, step: Tensor, purpose: int, ids: Tensor) -> Tensor:
    """Pseudorandom numbers below 2^32, one per id, determined by the seed, the step [] and the purpose."""
    engine = installed("kernels.mask.triton") if ids.is_cuda else None
    if engine is not None:
        return engine.keys((seed * COLUMNS) & WORD, step, purpose, ids, ROWS)
    return mix(mix(mix(step + seed * COLUMNS) + purpose) + ids * ROWS)


def choose(seed: int, step: Tensor, purpose: int, classes: int, size: int, kept: int) -> Tensor | None:
    """In each of the classes of `size` consecutive ids, the `kept` ids with the largest `keys`, ascending:
    [classes * kept]; None if there is no GPU kernel, or if `size` is above LARGEST_CLASS."""
    engine = installed("kernels.mask.triton") if step.is_cuda and size <= LARGEST_CLASS else None
    if engine is None:
        return None
    return engine.choose((seed * COLUMNS) & WORD, step, purpose, classes, size, kept, ROWS)


def draw_mask(seed: int, step: Tensor, rows: Tensor, columns: Tensor, rate: float) -> Mask:
    """The mask that drops a share `rate` of the transitions from states `rows` [R] to states `columns` [S]. It is
    determined by the seed and the step []."""
    return Mask(keys(seed, step, ROWS, rows), keys(seed, step, COLUMNS, columns), rate)
