"""Structure: non-negative linear maps between states."""

from trellis.operators.base import Transition
from trellis.operators.dense import Dense
from trellis.operators.stacked import Stacked

__all__ = ["Dense", "Stacked", "Transition"]
