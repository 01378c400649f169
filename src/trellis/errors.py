"""User errors, with one-sentence messages: what is wrong, where, and what to do."""


def printable(value: object) -> str:
    """Text with unprintable characters escaped, so that no file name, word or metadata can control the terminal."""
    shown = str(value)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in shown)


class TrellisError(Exception):
    """An error that the user can fix, such as a misspelled option. The command line prints it and exits with code 2.

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
