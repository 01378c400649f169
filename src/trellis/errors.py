"""User errors. Their messages are one sentence that says what is wrong, where, and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

LIMITS = MemoryError, RecursionError, OverflowError, RuntimeError, ValueError  # also torch's and numpy's own errors
_ALLOCATION = re.compile(
    "allocate|out of memory|not enough memory|Storage size calculation|array is too big|array size defined by dims|"
    "Maximum allowed dimension|multiplication overflow|Overflow when unpacking|too large to convert|exceeds the limit",
    re.IGNORECASE,
)


def printable(value: object) -> str:
    """Text with unprintable characters escaped, so that no file name, word or metadata can control the terminal."""
    shown = str(value)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in shown)


class TrellisError(Exception):
    """An error that the user can fix, such as a misspelled option. The command line prints it and exits with code 2.

    Examples
    --------
    >>> try:
    ...     trellis.train(["a b"], states=-1)
    ... except trellis.TrellisError as error:
    ...     print(error)
    model.states is -1: it must be at least 0.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(TrellisError, ValueError):
    """A TrellisError for invalid estimator input; also a ValueError, as scikit-learn's users expect."""


class InputTypeError(InputError, TypeError):
    """An InputError for values of the wrong type; also a TypeError."""


def limit_reached(error: Exception) -> str:
    """A sentence about an error of memory, recursion or overflow; empty for other errors."""
    reason = " ".join(str(error).split(". ")[0].split())[:200].rstrip(".")
    if isinstance(error, RecursionError):
        return "The input is nested too deeply; simplify it."
    if isinstance(error, OverflowError):
        return f"A number is too large ({reason}); use a smaller one."
    if isinstance(error, MemoryError) or _ALLOCATION.search(str(error)):
        why = f" ({reason})" if reason else ""
        return f"There is not enough memory{why}; use a smaller model, text or number."
    return ""


@contextmanager
def within_limits() -> Iterator[None]:
    """Turn errors of memory, recursion and overflow into a TrellisError of one sentence."""
    try:
        yield
    except LIMITS as error:
        if sentence := limit_reached(error):
            raise TrellisError(sentence) from error
        raise
