"""Parts given outright, such as an emission of one's own: parameters that EM re-estimates."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from trellis.emissions import Emission
from trellis.learning.base import Maximisable
from trellis.params.base import WHOLE, Params
from trellis.params.dropout import Draw
from trellis.parts import Parts
from trellis.transitions import Transition


class Held(nn.Module):
    """An object whose tensors are this module's: they move, and are saved in checkpoints, with it."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner
        for name, value in vars(owner).items():
            if isinstance(value, Tensor):
                self.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=False))

    def current(self) -> Any:
        """The object with the present tensors."""
        made = copy(self.owner)
        vars(made).update((name, weight.data) for name, weight in self.named_parameters())
        return made

    @torch.no_grad()
    def take(self, other: Any) -> None:
        """Become the tensors of another object of the kind."""
        for name, weight in self.named_parameters():
            weight.copy_(getattr(other, name))


class PartsParams(Params, Maximisable):
    """p(z_0) [K], p(z' | z) and p(x | z) as they are; each part's own M-step trains it."""

    support, partition = None, None

    def __init__(self, start: Tensor, transition: Transition, emission: Emission) -> None:
        super().__init__()
        self.num_states = transition.num_states
        self.start = nn.Parameter(start.detach().clone(), requires_grad=False)
        self.transition, self.emission = Held(transition), Held(emission)

    def parts(self, draw: Draw = WHOLE) -> Parts:
        return Parts(self.start.data, self.transition.current(), self.emission.current())

    @torch.no_grad()
    def write(self, parts: Parts) -> None:
        self.start.copy_(parts.start)
        self.transition.take(parts.transition)
        self.emission.take(parts.emission)
