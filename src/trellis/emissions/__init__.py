"""Emissions: how states show themselves."""

from trellis.emissions.categorical import Categorical
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.poisson import Poisson

__all__ = ["Categorical", "Gaussian", "Poisson"]
