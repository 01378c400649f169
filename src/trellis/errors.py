"""The one exception users meet: a sentence that says what, where and what to do."""


class TrellisError(Exception):
    """Something the user can put right; the command line prints it and exits with code 2."""
