"""Structure: non-negative linear maps between states."""

from trellis.operators.base import Transition
from trellis.operators.dense import Dense
from trellis.operators.kronecker import Kronecker
from trellis.operators.softmax import LogBlocks, Softmax
from trellis.operators.stacked import Stacked

__all__ = ["Dense", "Kronecker", "LogBlocks", "Softmax", "Stacked", "Transition"]
