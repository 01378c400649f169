"""Structure: non-negative linear maps between states."""

from trellis.operators.base import Transition
from trellis.operators.dense import Dense
from trellis.operators.softmax import LogBlocks, Softmax
from trellis.operators.stacked import Stacked

__all__ = ["Dense", "LogBlocks", "Softmax", "Stacked", "Transition"]
