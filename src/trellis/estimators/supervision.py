"""Weights of sequences, known states, and sequences identified by a column of a DataFrame."""

from typing import Any

import numpy as np

from trellis.errors import InputError
from trellis.estimators.inputs import Array, Observations, cleaned, joined, parts_of, plain
from trellis.estimators.splits import select


def weighted(observed: Observations, sample_weight: Any) -> Observations:
    """The observations with a weight for each sequence; sequences of weight zero are left out."""
    if sample_weight is None:
        return observed
    weights = np.asarray(sample_weight, np.float64)
    sequences = len(observed.lengths)
    if weights.shape != (sequences,):
        raise InputError(
            f"sample_weight has shape {weights.shape}; pass one weight for each of the {sequences} sequences."
        )
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
        raise InputError("sample_weight must be finite and not negative, and not all zero.")
    return select(observed._replace(weights=weights), np.flatnonzero(weights))


def labelled(observed: Observations, states: Any, n_components: int) -> Observations:
    """The observations with their known states; None, NaN, -1 or a masked entry is an unknown state."""
    if states is None:
        return observed
    parts = parts_of(states)
    values, missing = cleaned(plain(states) if parts is None else joined(parts), np.nan)
    values, missing = values.reshape(-1), missing.reshape(-1)
    if values.shape != (len(observed.values),):
        raise InputError(f"states has {len(values)} entries, but X has {len(observed.values)} samples.")
    if values.dtype.kind not in "biuf" or not np.isin(values[~missing], np.arange(-1, n_components)).all():
        raise InputError(f"states must be integers from 0 to {n_components - 1}, or -1 where the state is unknown.")
    known = np.where(missing, -1, values).astype(np.int64)
    return observed._replace(states=known if observed.order is None else known[observed.order])


def by_sequence(frame: Any, column: str, lengths: Any) -> tuple[Any, Array, Array]:
    """Group the rows of a DataFrame by a column. Sequences are in the order of their first rows. Returns the other
    columns, the lengths of the sequences, and the original positions of the rows."""
    if not hasattr(frame, "iloc") or frame.ndim != 2:
        raise InputError(f"sequence_id is {column!r}, so X must be a DataFrame with this column.")
    if column not in frame.columns:
        raise InputError(f"X has no column {column!r}, which sequence_id names; it has {list(frame.columns)}.")
    if lengths is not None:
        raise InputError("lengths and sequence_id both divide X into sequences; omit one of them.")
    names = frame[column]
    if names.isna().any():
        raise InputError(f"The column {column!r} of X has no value in row {int(names.isna().to_numpy().argmax())}.")
    _, first, codes, counts = np.unique(names.to_numpy(), return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first[codes], kind="stable")
    return frame.iloc[order].drop(columns=column), counts[np.argsort(first)], order
