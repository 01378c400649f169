"""Import modules that need numba or Triton, if these are installed."""

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def installed(module: str) -> ModuleType | None:
    """The module trellis.MODULE, or None if its dependencies are not installed."""
    try:
        return import_module(f"trellis.{module}")
    except ImportError:
        return None
