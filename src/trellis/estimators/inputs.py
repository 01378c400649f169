"""Convert estimator input to one flat array of observations and the lengths of its sequences.

Missing observations are None, masked entries, pandas.NA, or anything equal to `missing_values` (e.g. NaN or -1).
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator

from trellis.errors import InputError, InputTypeError

Array = np.ndarray[Any, Any]
BEYOND = np.iinfo(np.int64).max  # the id of an unknown symbol
LARGEST = 2.0**53  # integers up to this one are exact
LONG = 10  # characters: strings that hardly repeat and are this long on average look like sequences
HOW_MISSING = "mark missing observations as None or masked, or pass their value as missing_values"
SQUARABLE = 1e150  # largest magnitude of a measurement; beyond it, sums of squares could overflow


class Observations(NamedTuple):
    """N observations, concatenated."""

    values: Array  # [N] symbols, or [N, F] numbers; zero where missing
    missing: Array  # [N] bool
    lengths: Array  # [S] int64, each at least 1, summing to N
    order: Array | None = None  # [N]: the position of each observation in X; None: 0, 1, 2, ...
    weights: Array | None = None  # [S]; None: all 1
    states: Array | None = None  # [N] int64: the known states, -1 where unknown; None: all unknown

    @property
    def features(self) -> int:
        """The number of columns of X; symbols have one."""
        return 1 if self.values.ndim == 1 else self.values.shape[1]

    @property
    def seen(self) -> Array:
        """The observations that are not missing."""
        return self.values[~self.missing]


def read_symbols(X: Any, lengths: Any = None, missing_values: Any = None) -> Observations:
    """Read symbols: non-negative integers, or strings.

    One sequence is a list, an array, a column [N, 1], a pandas column or a string. (A list of one-element lists is a
    column.) Several sequences are a list of such objects, the rows of an array [S, T], or one object with `lengths`."""
    X = listed(list(X) if isinstance(X, str) else X)
    if hasattr(X, "columns") and len(X.columns) != 1:
        raise InputError(f"X is a DataFrame of {len(X.columns)} columns; pass one column of symbols, as in X['name'].")
    parts = parts_of(X)
    if parts is None:
        flat = plain(X)
        if flat.ndim == 2 and flat.shape[1] != 1:
            sequences, steps = flat.shape
            text = f"X is read as {sequences} sequences of {steps} symbols; for one sequence, pass X.reshape(-1, 1)"
            warnings.warn(f"{text}; to silence this warning, pass list(X).", stacklevel=caller_level())
            parts = list(flat)
    if parts is not None and any(size(part) != 1 for part in parts):
        lengths = own_lengths([size(part) for part in parts], lengths)
    flat = flat if parts is None else joined(parts)
    if flat.dtype.kind == "S":
        raise InputError("X contains bytes; decode them to strings, or pass list(X) for their values.")
    values, missing = cleaned(flat, missing_values)
    if values.ndim > 1 and values.size != len(values):
        raise InputError(f"X has shape {values.shape}; pass symbols as one column, or one sequence per row.")
    return Observations(values.reshape(-1), missing.reshape(-1), checked_lengths(lengths, values.size))


def read_numbers(X: Any, lengths: Any = None, missing_values: Any = None) -> Observations:
    """Read numbers: an array [N, F], or [N] for one feature, with `lengths`; or a list with one array per sequence.

    An observation with any missing feature is treated as missing."""
    X = listed(X)
    parts = parts_of(X)
    if parts is not None and (len({len(part) for part in parts}) > 1 or any(np.ndim(part) > 1 for part in parts)):
        lengths = own_lengths([len(part) for part in parts], lengths)
        columns = [as_columns(plain(part)) for part in parts]
        if len({column.shape[1] for column in columns}) > 1:
            raise InputError("The sequences of X have different numbers of features.")
        flat = np.ma.concatenate(columns) if any(map(np.ma.isMaskedArray, columns)) else np.concatenate(columns)
    else:
        flat = as_columns(plain(X))
    values, missing = cleaned(flat, missing_values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"X contains {values.dtype} values; expected numbers.")
    values = np.where(missing, 0.0, values.astype(np.float64))
    refuse(~np.isfinite(values), "an infinite number", "remove it")
    return Observations(values, np.asarray(missing.any(1)), checked_lengths(lengths, len(values)))


def read_measurements(X: Any, lengths: Any = None, missing_values: Any = None) -> Observations:
    """Like `read_numbers`; raises if a number is so large that sums of squares could overflow."""
    observed = read_numbers(X, lengths, missing_values)
    refuse(abs(observed.values) > SQUARABLE, "a number whose square overflows", "rescale the data")
    return observed


def own_lengths(found: list[int], lengths: Any) -> list[int]:
    """The lengths of a list of sequences; raises if other `lengths` were passed as well."""
    if lengths is not None and not np.array_equal(found, lengths):
        raise InputError("X is a list of sequences, which already has lengths; omit the lengths argument.")
    return found


def check_features(observed: Observations, wanted: int, estimator: Any) -> None:
    """Raise if the number of features of observations [N, F] is not that of the estimator."""
    found = observed.values.shape[1]
    if found != wanted:
        name = type(estimator).__name__
        raise InputError(f"X has {found} features, but {name} is expecting {wanted} features as input.")


def whole_numbers(observed: Observations, what: str) -> Observations:
    """The observations as non-negative integers [N, ...]."""
    values = observed.values
    if values.dtype.kind == "f":
        refuse(~np.isfinite(values), f"an infinite {what}", "remove it (inf)")
        refuse(values != np.floor(values), f"a {what} that is not an integer", "round it")
        refuse(values > LARGEST, f"a {what} that is too large", f"{what}s must be less than 2^53")
    refuse(values < 0, f"a negative {what}", f"{what}s start at 0; {HOW_MISSING}")
    return observed._replace(values=values.astype(np.int64))


class SymbolInput(BaseEstimator):
    """Mixin for estimators over symbols. An estimator fitted to strings keeps the distinct strings as `symbols_`, in
    alphabetical order."""

    missing_values: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = tags.input_tags.string = tags.input_tags.categorical = True
        tags.input_tags.two_d_array = False
        return tags

    def _read_integers(self, X: Any, lengths: Any, fitting: bool) -> tuple[Observations, Array]:
        """The symbols as integers, and as given. A string becomes its index in `symbols_`; if unknown, BEYOND."""
        given = read_symbols(X, lengths, self.missing_values)
        strings = given.values.dtype.kind == "U"
        if fitting and not len(given.seen):
            raise InputError(f"All observations in X are missing; {HOW_MISSING}.")
        if not fitting and strings != hasattr(self, "symbols_"):
            fitted, held = ("numbers", "strings") if strings else ("strings", "numbers")
            raise InputError(f"The model was fitted to {fitted}, but X contains {held}.")
        if fitting:
            self.__dict__.pop("symbols_", None)
        if not strings:
            return whole_numbers(given, "symbol"), given.values
        if fitting:
            self.symbols_ = np.unique(given.seen)
            if len(given.lengths) == 1 and lengths is None:
                warn_about_sequences(given.seen, self.symbols_)
        places = np.searchsorted(self.symbols_, given.values).clip(max=len(self.symbols_) - 1)
        known = (self.symbols_[places] == given.values) | given.missing
        return given._replace(values=np.where(known, places, BEYOND)), given.values


def warn_about_sequences(symbols: Array, distinct: Array) -> None:
    """Warn if the symbols of a single sequence look like sequences: most are distinct, and long or with spaces."""
    spaced = np.char.find(np.char.strip(symbols), " ") > 0
    if 2 * len(distinct) > len(symbols) and (np.char.str_len(symbols).mean() >= LONG or spaced.mean() > 0.5):
        advice = "if each is a sequence, pass [list(s) for s in X] for characters or [s.split() for s in X] for words."
        what = f"X is one sequence whose symbols are its {len(symbols)} strings"
        warnings.warn(f"{what}; {advice}", stacklevel=caller_level())


def caller_level() -> int:
    """The stack level of the code that called this package, counted from the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("trellis."):
        level, frame = level + 1, frame.f_back
    return level


def refuse(wrong: Array, what: str, advice: str) -> None:
    """Raise an error about the first observation for which `wrong` is true, if there is one."""
    if wrong.any():
        place = int(wrong.reshape(len(wrong), -1).any(1).argmax())
        raise InputError(f"X has {what} at observation {place}; {advice}.")


def listed(X: Any) -> Any:
    """Convert an iterator, or a pandas column of sequences, to a list; return any other X unchanged."""
    nested = hasattr(X, "isna") and X.ndim == 1 and len(X) > 0 and all(isinstance(part, list | tuple) for part in X)
    return list(X) if nested or isinstance(X, Iterator) else X


def parts_of(X: Any) -> list[Any] | None:
    """The sequences of a list of sequences; None if X is a single array of observations."""
    listed = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if not listed or len(X) == 0 or not all(hasattr(part, "__len__") and not isinstance(part, str) for part in X):
        return None
    return list(X)


def size(part: Any) -> int:
    return int(part.size) if isinstance(part, np.ndarray) else len(part)


def joined(parts: Sequence[Any]) -> Array:
    """Concatenate sequences of symbols."""
    if all(isinstance(part, list | tuple) for part in parts):
        return plain(list(chain.from_iterable(parts)))
    columns = [plain(part).reshape(-1) for part in parts]
    return np.ma.concatenate(columns) if any(map(np.ma.isMaskedArray, columns)) else np.concatenate(columns)


def plain(X: Any) -> Array:
    """X as an array. Values that pandas marks as missing are masked, except in columns of NumPy floats, where they
    remain NaN."""
    if np.ma.isMaskedArray(X):
        return X
    if issparse(X):
        raise InputTypeError("X is sparse; sparse input is not supported: pass X.toarray().")
    if hasattr(X, "isna"):
        kinds = list(X.dtypes) if X.ndim == 2 else [X.dtypes]
        floats = np.array([isinstance(kind, np.dtype) and kind.kind == "f" for kind in kinds])
        return np.ma.masked_array(X.to_numpy(), X.isna().to_numpy() & ~(floats if X.ndim == 2 else floats[0]))
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError("X is neither an array nor a list of sequences: its parts differ in shape.") from error


def as_columns(flat: Array) -> Array:
    if flat.ndim > 2 or flat.ndim == 0:
        raise InputError(f"X has shape {flat.shape}; pass observations as [n_samples, n_features].")
    if 0 in flat.shape[1:]:
        raise InputError(f"X has 0 feature(s) (shape={flat.shape}) while a minimum of 1 is required.")
    return flat[:, None] if flat.ndim == 1 else flat


def cleaned(flat: Array, missing_values: Any) -> tuple[Array, Array]:
    """The values with their natural dtype, zero (or an empty string) where missing, and the mask of missing values."""
    missing = np.ma.getmaskarray(flat).copy() if np.ma.isMaskedArray(flat) else np.zeros(flat.shape, bool)
    values = np.ma.getdata(flat)
    if values.dtype.kind == "c":
        raise InputError("X has complex values. Complex data not supported: pass real and imaginary parts as features.")
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
    return (np.where(missing, np.zeros((), values.dtype), values) if missing.any() else values), missing


def each(values: Array, test: Callable[[Any], bool]) -> Array:
    """Apply a test to each object of an array, and return a bool array; a ufunc would warn when comparing NaN."""
    return np.fromiter(map(test, values.flat), bool, values.size).reshape(values.shape)


def natural(values: Array, missing: Array) -> Array:
    """Convert an object array to its natural dtype; missing entries become that dtype's zero."""
    known = np.array(values[~missing].tolist())
    if known.ndim != 1 or known.dtype.kind not in "biufU":
        kinds = "neither numbers nor strings; each entry of this argument must be a string or a number"
        raise InputTypeError(f"X contains values that are {kinds}.")
    result = np.zeros(values.shape, known.dtype)
    result[~missing] = known
    return result


def nothing(value: Any) -> bool:
    """Whether a value is None or pandas.NA, but not NaN, which counts as a number."""
    return value is None or type(value).__name__ == "NAType"


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def lengths_of(X: Any, y: Any, lengths: Any) -> Any:
    """The lengths of the sequences. hmmlearn passes them as the second argument, where scikit-learn passes targets y.

    A second argument with as many entries as X is taken for targets and ignored, unless all its entries are one: only
    then could it be lengths."""
    if lengths is not None or y is None:
        return lengths
    y = np.asarray(y)
    entries = len(X) if isinstance(X, list | tuple | str) else X.shape[0] if hasattr(X, "shape") else len(np.asarray(X))
    return None if y.ndim and len(y) == entries and not (y == 1).all() else y


def checked_lengths(lengths: Any, total: int) -> Array:
    """Check the sequence lengths against `total` observations; the default is one sequence."""
    if total == 0:
        raise InputError("X is empty.")
    if lengths is None:
        return np.array([total], np.int64)
    given = np.atleast_1d(np.asarray(lengths))
    if given.ndim != 1 or given.dtype.kind not in "iu" or (given < 0).any():
        raise InputError("lengths must be integers, one per sequence.")
    if (given == 0).any():
        raise InputError(f"Sequence {int((given == 0).argmax())} is empty; leave it out.")
    if given.sum() != total:
        raise InputError(f"lengths sum to {given.sum()}, but X has {total} samples.")
    return given.astype(np.int64)
