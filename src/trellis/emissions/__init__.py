"""What states say: distributions over observations."""

from trellis.emissions.categorical import Categorical
from trellis.emissions.loglinear import LogLinear
from trellis.emissions.partition import Partition

__all__ = ["Categorical", "LogLinear", "Partition"]
