"""Import modules that need numba or Triton, if these are installed."""

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

TRITON = (3, 6)  # the oldest version that the kernels were run with on a GPU


@cache
def installed(module: str) -> ModuleType | None:
    """The module trellis.MODULE, or None if its dependencies are not installed."""
    if module.endswith(("triton", "graphed")) and not recent("triton", TRITON):
        return None
    try:
        return import_module(f"trellis.{module}")
    except ImportError:
        return None


@cache
def recent(package: str, oldest: tuple[int, int]) -> bool:
    """Whether a package is installed in this version or a later one."""
    try:
        major, minor = version(package).split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= oldest
