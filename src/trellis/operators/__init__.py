"""Structure: non-negative linear maps between states."""

from trellis.operators.algebra import Sum
from trellis.operators.banded import Banded
from trellis.operators.base import Transition
from trellis.operators.dense import Dense
from trellis.operators.kronecker import Kronecker
from trellis.operators.lowrank import LowRank
from trellis.operators.softmax import LogBlocks, Softmax
from trellis.operators.stacked import Stacked

__all__ = ["Banded", "Dense", "Kronecker", "LogBlocks", "LowRank", "Softmax", "Stacked", "Sum", "Transition"]
