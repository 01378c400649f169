"""What states say: distributions over observations."""

from trellis.emissions.categorical import Categorical
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.loglinear import LogLinear
from trellis.emissions.noisyor import NoisyOr
from trellis.emissions.partition import Partition
from trellis.emissions.poisson import Poisson
from trellis.emissions.product import Product

__all__ = ["Categorical", "Gaussian", "LogLinear", "NoisyOr", "Partition", "Poisson", "Product"]
