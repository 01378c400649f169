"""Structure: non-negative linear maps between states."""

from trellis.transitions.algebra import Sum
from trellis.transitions.banded import Banded
from trellis.transitions.base import Transition
from trellis.transitions.dense import Dense
from trellis.transitions.kronecker import Kronecker
from trellis.transitions.lowrank import LowRank
from trellis.transitions.softmax import LogBlocks, Softmax
from trellis.transitions.stacked import Stacked

__all__ = ["Banded", "Dense", "Kronecker", "LogBlocks", "LowRank", "Softmax", "Stacked", "Sum", "Transition"]
