"""Functions for the engines that use NumPy arrays: conversion, checks of shapes and tokens, the logarithm."""

from typing import Any

import numpy as np
from torch import Tensor

from trellis.errors import TrellisError

Array = np.ndarray[Any, Any]
NAMES = "transition", "prior", "lengths"


def array(tensor: Tensor) -> Array:
    return tensor.detach().contiguous().numpy()


def log(values: Array, out: Array | None = None) -> Array:
    """The logarithm, -inf at zero. Unlike torch, NumPy does not wake a thread pool for small inputs."""
    with np.errstate(divide="ignore"):
        return np.log(values, out=out)


def check(shape: tuple[int, ...], states: int, lengths: Array, matrix: tuple[int, ...], prior: tuple[int, ...]) -> None:
    """Raise an error for shapes or lengths with which compiled code would read out of bounds. `shape` is [B, T]."""
    batch, steps = shape
    leading = {2: (), 3: (steps - 1,)}.get(len(matrix), (batch, steps - 1))
    given, wanted = (matrix, prior, lengths.shape), ((*leading, states, states), (batch, states), (batch,))
    if given != wanted:
        name, found, size = next(one for one in zip(NAMES, given, wanted, strict=True) if one[1] != one[2])
        raise TrellisError(
            f"The {name} of {batch} sequences of {steps} steps over {states} states must have shape "
            f"{list(size)}, not {list(found)}."
        )
    if batch and not (lengths.min() >= 0 and lengths.max() <= steps):
        wrong = int(lengths[(lengths < 0) | (lengths > steps)][0])
        raise TrellisError(f"Lengths must be between 0 and the {steps} steps of the batch; found {wrong}.")


def check_rows(symbols: int, rows: Array, lengths: Array) -> None:
    """Raise an error for tokens without a row in the table. The padding is not checked, because it is never read."""
    if rows.size == 0 or rows.max() < symbols:
        return
    inside = np.arange(rows.shape[1]) < lengths[:, None]
    highest = int(np.where(inside, rows, -1).max())
    if highest >= symbols:
        raise TrellisError(f"Token {highest} is outside the vocabulary of {symbols}; use the model's vocabulary.")
