"""What an estimator may be given, made into one flat array of observations with the lengths of its sequences.

A missing observation is None, a masked entry or pandas.NA, or whatever equals `missing_values` (NaN, say, or -1).
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from trellis.errors import InputError

Array = np.ndarray[Any, Any]
BEYOND = np.iinfo(np.int64).max  # the number of a symbol that is not known
HOW_MISSING = "mark missing observations as None or masked, or name their value with missing_values"


class Observations(NamedTuple):
    """N observations in a row."""

    values: Array  # [N] symbols, or [N, F] numbers; zero where missing
    missing: Array  # [N] bool
    lengths: Array  # [S] int64, each at least one, N in all

    @property
    def seen(self) -> Array:
        """The observations that are there."""
        return self.values[~self.missing]


def read_symbols(X: Any, lengths: Any = None, missing_values: Any = None) -> Observations:
    """Symbols: non-negative integers, or strings.

    One sequence as a list, an array, a column [N, 1], a pandas column or a string; several as a list of those, as the
    rows of [S, T], or one after the other with their `lengths`. A list of lists of one symbol each is a column."""
    if isinstance(X, str):
        X = list(X)
    parts = parts_of(X)
    if parts is None:
        flat = plain(X)
        if flat.ndim == 2 and flat.shape[1] != 1:
            parts = list(flat)
    if parts is not None and lengths is None and any(size(part) != 1 for part in parts):
        lengths = [size(part) for part in parts]
    elif parts is not None and any(size(part) != 1 for part in parts):
        raise InputError("X is a list of sequences, which has lengths of its own: leave out lengths.")
    values, missing = cleaned(joined(parts) if parts is not None else flat, missing_values)
    if values.ndim > 1 and values.size != len(values):
        raise InputError(f"X has the shape {values.shape}: symbols come in one column, or one sequence to a row.")
    return Observations(values.reshape(-1), missing.reshape(-1), checked_lengths(lengths, values.size))


def read_numbers(X: Any, lengths: Any = None, missing_values: Any = None) -> Observations:
    """Numbers [N, F], or [N] of one feature, with `lengths`; or a list of such arrays, one for each sequence.

    An observation that misses any of its features is missing as a whole."""
    parts = parts_of(X)
    if parts is not None and (len({len(part) for part in parts}) > 1 or any(np.ndim(part) > 1 for part in parts)):
        if lengths is not None:
            raise InputError("X is a list of sequences, which has lengths of its own: leave out lengths.")
        lengths = [len(part) for part in parts]
        columns = [as_columns(plain(part)) for part in parts]
        if len({column.shape[1] for column in columns}) > 1:
            raise InputError("The sequences of X have different numbers of features.")
        flat = np.ma.concatenate(columns) if any(map(np.ma.isMaskedArray, columns)) else np.concatenate(columns)
    else:
        flat = as_columns(plain(X))
    values, missing = cleaned(flat, missing_values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"X holds {values.dtype} values; numbers are needed.")
    values = np.where(missing, 0.0, values.astype(np.float64))
    refuse(~np.isfinite(values), "an infinite number", "remove it")
    return Observations(values, np.asarray(missing.any(1)), checked_lengths(lengths, len(values)))


def check_features(observed: Observations, fitted: Any, name: str) -> None:
    """Refuse observations [N, F] of another number of features than a fitted attribute [K, F] has."""
    found, wanted = observed.values.shape[1], np.shape(fitted)[1]
    if found != wanted:
        raise InputError(f"X has {found} features, but {name} has {wanted}.")


def whole_numbers(observed: Observations, what: str) -> Observations:
    """The same observations as integers [N, ...], none negative."""
    values = observed.values
    if values.dtype.kind == "f":
        refuse(values != np.floor(values), f"a {what} that is not a whole number", "round it")
    refuse(values < 0, f"a negative {what}", f"{what}s count from 0; {HOW_MISSING}")
    return observed._replace(values=values.astype(np.int64))


class SymbolInput:
    """An estimator over symbols: it keeps the strings that it was fitted to as `symbols_`, in alphabetical order."""

    missing_values: Any

    def _read_integers(self, X: Any, lengths: Any, fitting: bool) -> tuple[Observations, Array]:
        """Symbols as integers, strings by their places in `symbols_` (or BEYOND them all); and as they were given."""
        given = read_symbols(X, lengths, self.missing_values)
        strings = given.values.dtype.kind == "U"
        if fitting and not len(given.seen):
            raise InputError(f"X has no observation that is not missing; {HOW_MISSING}.")
        if not fitting and strings != hasattr(self, "symbols_"):
            fitted, held = ("numbers", "strings") if strings else ("strings", "numbers")
            raise InputError(f"The model was fitted to {fitted}, and X holds {held}.")
        if fitting:
            self.__dict__.pop("symbols_", None)
        if not strings:
            return whole_numbers(given, "symbol"), given.values
        if fitting:
            self.symbols_ = np.unique(given.seen)
        places = np.searchsorted(self.symbols_, given.values).clip(max=len(self.symbols_) - 1)
        known = (self.symbols_[places] == given.values) | given.missing
        return given._replace(values=np.where(known, places, BEYOND)), given.values


def refuse(wrong: Array, what: str, advice: str) -> None:
    """An error about the first of the wrong observations."""
    if wrong.any():
        place = int(wrong.reshape(len(wrong), -1).any(1).argmax())
        raise InputError(f"X has {what} at observation {place}; {advice}.")


def parts_of(X: Any) -> list[Any] | None:
    """The sequences of a list of sequences; None where X is one array of observations."""
    listed = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if not listed or len(X) == 0 or not all(hasattr(part, "__len__") and not isinstance(part, str) for part in X):
        return None
    return list(X)


def size(part: Any) -> int:
    return int(part.size) if isinstance(part, np.ndarray) else len(part)


def joined(parts: Sequence[Any]) -> Array:
    """Sequences of symbols one after the other."""
    if all(isinstance(part, list | tuple) for part in parts):
        return plain(list(chain.from_iterable(parts)))
    columns = [plain(part).reshape(-1) for part in parts]
    return np.ma.concatenate(columns) if any(map(np.ma.isMaskedArray, columns)) else np.concatenate(columns)


def plain(X: Any) -> Array:
    """X as an array, masked where pandas says that something other than a plain float is missing."""
    if np.ma.isMaskedArray(X):
        return X
    if hasattr(X, "isna"):
        kinds = list(X.dtypes) if X.ndim == 2 else [X.dtypes]
        floats = np.array([isinstance(kind, np.dtype) and kind.kind == "f" for kind in kinds])
        return np.ma.masked_array(X.to_numpy(), X.isna().to_numpy() & ~(floats if X.ndim == 2 else floats[0]))
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError("X is neither an array nor a list of sequences; its parts do not fit together.") from error


def as_columns(flat: Array) -> Array:
    if flat.ndim > 2 or flat.ndim == 0:
        raise InputError(f"X has the shape {flat.shape}: observations come as [n_samples, n_features].")
    return flat[:, None] if flat.ndim == 1 else flat


def cleaned(flat: Array, missing_values: Any) -> tuple[Array, Array]:
    """Values of one natural type, zero (or empty) where missing, and what is missing."""
    missing = np.ma.getmaskarray(flat).copy()
    values = np.ma.getdata(flat)
    if values.dtype == object:
        missing |= each(values, nothing)
    if values.dtype.kind in "fO":
        not_numbers = np.isnan(values) if values.dtype.kind == "f" else each(values, is_nan)
        if is_nan(missing_values):
            missing |= not_numbers
        refuse(not_numbers & ~missing, "a NaN", HOW_MISSING)
    if values.dtype == object:
        values = natural(values, missing)
    if missing_values is not None and isinstance(missing_values, str) == (values.dtype.kind == "U"):
        missing |= values == missing_values
    return np.where(missing, np.zeros((), values.dtype), values), missing


def each(values: Array, test: Callable[[Any], bool]) -> Array:
    """A test of every object, as an array of bool. No ufunc, which warns where a comparison inside meets a NaN."""
    return np.fromiter(map(test, values.flat), bool, values.size).reshape(values.shape)


def natural(values: Array, missing: Array) -> Array:
    """An array of objects as an array of what the objects are; those missing take the type's zero."""
    known = np.array(values[~missing].tolist())
    if known.ndim != 1 or known.dtype.kind not in "biufU":
        raise InputError("X holds values that are neither numbers nor strings.")
    result = np.zeros(values.shape, known.dtype)
    result[~missing] = known
    return result


def nothing(value: Any) -> bool:
    """None and pandas.NA; NaN is a number."""
    return value is None or type(value).__name__ == "NAType"


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def checked_lengths(lengths: Any, total: int) -> Array:
    """The lengths of the sequences of `total` observations; one sequence unless told."""
    if total == 0:
        raise InputError("X is empty: there is nothing to work on.")
    given = np.atleast_1d(np.asarray([total] if lengths is None else lengths))
    if given.ndim != 1 or given.dtype.kind not in "iu" or (given < 0).any():
        raise InputError("lengths must be whole numbers, one for each sequence.")
    if (given == 0).any():
        raise InputError(f"Sequence {int((given == 0).argmax())} is empty: leave it out.")
    if given.sum() != total:
        raise InputError(f"lengths sum to {given.sum()}, but X has {total} samples.")
    return given.astype(np.int64)
