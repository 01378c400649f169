"""Parts passed directly, such as a custom emission, as parameters that EM can train."""

from copy import copy
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from trellis.emissions import Emission
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.base import WHOLE, Params
from trellis.families.hmm.parameters.dropout import Draw
from trellis.learning.base import Maximisable
from trellis.parts import Parts
from trellis.transitions import Transition


class Held(nn.Module):
    """Registers the tensors of an object and its attributes as buffers, so that they are moved and saved with the
    model."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner
        for name, value in own_attributes(owner).items():
            if isinstance(value, Tensor):
                self.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=False))
            elif isinstance(value, nn.Module):
                self.add_module(name, value)
            elif isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
                raise TrellisError(f"{type(owner).__name__}.{name} contains several tensors; make each an attribute.")
            elif isinstance(value, tuple) and all(hasattr(part, "__dict__") for part in value):
                self.add_module(name, nn.ModuleList(Held(part) for part in value))

    def current(self) -> Any:
        """The object with its current tensors."""
        made = copy(self.owner)
        attributes = own_attributes(made)
        vars(made).clear()
        device = next(self.parameters()).device
        for name, value in attributes.items():
            module = self._modules.get(name)
            if module is not None:
                nested = isinstance(module, nn.ModuleList)
                value = tuple(cast(Held, part).current() for part in cast(Any, module)) if nested else module
            elif isinstance(value, Tensor):
                value = getattr(self, name).data
            setattr(made, name, device if isinstance(value, torch.device) else value)
        return made

    @torch.no_grad()
    def take(self, other: Any) -> None:
        """Copy the tensors of another object of the same type."""
        for name, weight in self._parameters.items():
            cast(Tensor, weight).copy_(getattr(other, name))
        for name, module in self._modules.items():
            if isinstance(module, nn.ModuleList):
                for held, part in zip(module, getattr(other, name), strict=True):
                    cast(Held, held).take(part)


def own_attributes(owner: Any) -> dict[str, Any]:
    """The attributes of an object, without cached properties."""
    return {k: v for k, v in vars(owner).items() if not isinstance(getattr(type(owner), k, None), cached_property)}


class PartsParams(Params, Maximisable):
    """Parameters that consist of p(z_0) [K], a transition and an emission; each part is trained by its own M-step."""

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
