"""Emissions: distributions over observations given the state."""

from trellis.emissions.categorical import Categorical
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.partition import Partition
from trellis.emissions.poisson import Poisson
from trellis.emissions.product import Product

__all__ = ["Categorical", "Gaussian", "Partition", "Poisson", "Product"]
