"""Parameterization: modules that build operators and emissions."""

from trellis.params.table import TableParams

__all__ = ["TableParams"]
