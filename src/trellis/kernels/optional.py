"""Modules that may be absent, because they need numba or Triton."""

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def installed(module: str) -> ModuleType | None:
    """The module trellis.MODULE, where what it imports is installed."""
    try:
        return import_module(f"trellis.{module}")
    except ImportError:
        return None
