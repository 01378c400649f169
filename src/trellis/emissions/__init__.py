"""Emissions: how states show themselves."""

from trellis.emissions.categorical import Categorical

__all__ = ["Categorical"]
