"""Kernels of Brown clustering: compiled where numba is installed, plain NumPy with the same answers elsewhere."""

import logging
from types import ModuleType

from trellis.kernels.brown import naive

logger = logging.getLogger(__name__)


def kernels() -> ModuleType:
    """The fastest module that offers `exchange` and the merging functions of `naive`."""
    try:
        from trellis.kernels.brown import numba
    except ImportError:
        logger.warning("numba is not installed: Brown clustering runs in plain NumPy, many times slower.")
        return naive
    return numba
