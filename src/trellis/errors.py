"""The one exception users meet: a sentence that says what, where and what to do."""


class TrellisError(Exception):
    """Something the user can put right; the command line prints it and exits with code 2.

    >>> try:
    ...     trellis.train(["a b"], states=0)
    ... except trellis.TrellisError as error:
    ...     print(error)
    model.states is 0: it must be at least 1.
    """


class InputError(TrellisError, ValueError):
    """The same for what an estimator is given: scikit-learn's users expect a ValueError there."""
