"""The components of a hidden Markov model (start, transition, emission) and their M-steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions import Emission
from trellis.errors import TrellisError
from trellis.transitions import Countable, Entry, Transition
from trellis.types import Counts


class Prior(NamedTuple):
    """The priors of start, transition and emission in the M-step. A component whose prior is None is not updated.

    A number p is a pseudocount: a Dirichlet prior with parameter p + 1. Non-categorical emissions have their own type
    of prior."""

    start: float | Tensor | None = 0.0
    transition: float | Tensor | None = 0.0
    emission: Any = 0.0
    constraints: Any = None  # `trellis.learning.constraints.Constraints`: parameters that are tied or frozen

    @classmethod
    def same(cls, pseudocount: float) -> Prior:
        """A Prior with the same pseudocount for every component."""
        return cls(pseudocount, pseudocount, pseudocount)


class Parts:
    """The parts of an HMM: start p(z_0) [K], transition p(z' | z) and emission p(x | z), normalised.

    The start may be a function that is called on first use. Under state dropout, the parts describe the model over the
    states `kept` [K'], and `entry(ids)` returns the transitions from the states `ids` [R] of the full model into the
    kept states."""

    def __init__(
        self,
        start: Tensor | Callable[[], Tensor],
        transition: Transition,
        emission: Any,
        entry: Callable[[Tensor], Entry] | None = None,
        kept: Tensor | None = None,
    ) -> None:
        self.given_start, self.transition, self.emission = start, transition, emission
        self.entry, self.kept = entry, kept

    @cached_property
    def start(self) -> Tensor:
        return self.given_start() if callable(self.given_start) else self.given_start

    def started(self) -> Parts:
        """The same parts; if the start is a function, it is called."""
        return Parts(self.start, self.transition, self.emission, self.entry, self.kept)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.start, self.transition, self.emission)

    @property
    def num_states(self) -> int:
        return self.transition.num_states

    def with_emission(self, emission: Emission) -> Parts:
        return Parts(self.given_start, self.transition, emission, self.entry, self.kept)

    def maximised(self, counts: Counts, prior: Prior, consume: bool = False) -> Parts:
        """Return new parts, over all states, after an M-step with these expected counts and priors. If `consume`, the
        new parameters may be written over the counts."""
        if prior.constraints is not None:
            return prior.constraints.maximised(self, counts, prior._replace(constraints=None))
        transition, emission = self.transition, self.emission
        if prior.emission is not None:  # first, because on a GPU it takes longest
            emission = (emission.consuming if consume else emission.maximised)(counts.emission, prior.emission)
        if prior.transition is not None:
            moves = countable(transition)
            transition = (moves.consuming if consume else moves.maximised)(counts.transition, prior.transition)
        start = self.start if prior.start is None else most_probable(counts.start, prior.start, self.start)
        return Parts(start, transition, emission)


def countable(transition: Transition) -> Countable:
    """Return the transition if it has an M-step, that is, if it is `Countable`; raise an error otherwise."""
    if not isinstance(transition, Countable):
        raise TrellisError(f"{type(transition).__name__} transitions have no M-step; train them by gradient.")
    return transition
