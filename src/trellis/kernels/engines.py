"""Engines that may be absent: modules that need numba or Triton."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def installed(kernel: str, engine: str = "triton") -> ModuleType | None:
    """The module trellis.kernels.KERNEL.ENGINE, where what it needs is installed."""
    try:
        return import_module(f"trellis.kernels.{kernel}.{engine}")
    except ImportError:
        return None
