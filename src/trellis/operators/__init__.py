"""Structure: non-negative linear maps between states."""

from trellis.operators.base import Transition
from trellis.operators.dense import Dense

__all__ = ["Dense", "Transition"]
