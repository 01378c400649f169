"""Emissions: distributions over observations given the state."""

from trellis.emissions.base import Emission, SymbolEmission, Vectors
from trellis.emissions.categorical import Categorical
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.mixture import GaussianMixture
from trellis.emissions.multinomial import Multinomial
from trellis.emissions.partition import Partition
from trellis.emissions.poisson import Poisson
from trellis.emissions.product import Product

__all__ = [
    "Categorical", "Emission", "Gaussian", "GaussianMixture", "Multinomial", "Partition", "Poisson", "Product",
    "SymbolEmission", "Vectors",
]  # fmt: skip
