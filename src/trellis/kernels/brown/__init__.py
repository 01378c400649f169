"""Kernels of Brown clustering: compiled if numba is installed, otherwise plain NumPy with identical results."""

import logging
from types import ModuleType

from trellis.kernels.brown import naive

logger = logging.getLogger(__name__)


def kernels() -> ModuleType:
    """The fastest module that provides `exchange` and the merging functions of `naive`."""
    try:
        from trellis.kernels.brown import numba
    except ImportError:
        logger.warning("numba is not installed; Brown clustering runs in plain NumPy, which is many times slower.")
        return naive
    return numba
