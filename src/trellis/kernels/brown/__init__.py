"""Kernels of Brown clustering."""

import logging
from importlib.util import find_spec
from types import ModuleType

logger = logging.getLogger(__name__)


def kernels() -> ModuleType:
    """The module of functions that move words and merge classes. Without numba, they are not compiled."""
    if find_spec("numba") is None:
        logger.warning("numba is not installed; Brown clustering runs in plain Python, which is many times slower.")
    from trellis.kernels.brown import numba

    return numba
