"""Time-reversed transitions: A' in place of A."""

from torch import Tensor

from trellis.transitions.base import Transition
from trellis.transitions.dense import Dense
from trellis.transitions.lowrank import LowRank


class Transposed(Transition):
    """The transpose A' of any transition matrix A. Its rows need not sum to one."""

    def __init__(self, original: Transition) -> None:
        self.original, self.num_states = original, original.num_states

    def forward(self, probs: Tensor) -> Tensor:
        return self.original.backward(probs)

    def backward(self, message: Tensor) -> Tensor:
        return self.original.forward(message)

    def forward_at(self, probs: Tensor, states: Tensor) -> Tensor:
        return self.original.backward_at(probs, states)

    def backward_at(self, message: Tensor, states: Tensor) -> Tensor:
        return self.original.forward_at(message, states)

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return self.original.blocks(after, before).mT

    def dense(self) -> Tensor:
        return self.original.dense().mT


def transposed(transition: Transition) -> Transition:
    """The transpose A' of a transition. A dense or low-rank transition stays dense or low-rank."""
    if isinstance(transition, Dense):
        return Dense(transition.matrix.T)
    if isinstance(transition, LowRank):
        return LowRank(transition.out, transition.into, transition.dtype)
    return Transposed(transition)
