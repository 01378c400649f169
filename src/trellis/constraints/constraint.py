"""Constraints on sentences: descriptions that a vocabulary turns into automata.

A constraint applies to the tokens of a sentence, without <eos>. Constraints are combined by & (both), | (either), ~
(not) and + (one after the other)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton, concatenation, minimised, product
from trellis.errors import TrellisError


@dataclass(frozen=True, eq=False)
class Constraint:
    """A set of sentences, for any vocabulary.

    Parameters
    ----------
    name
        What the constraint requires, for messages.
    build
        A function from the tokens of a vocabulary to the automaton that accepts the sentences.
    parts
        The constraints that a conjunction combines; empty for other constraints.
    """

    name: str
    build: Callable[[Alphabet], Automaton]
    parts: tuple[Constraint, ...] = ()

    def __repr__(self) -> str:
        return f"<Constraint: {self.name}>"

    def __and__(self, other: Constraint) -> Constraint:
        if not isinstance(other, Constraint):
            return NotImplemented
        parts = (*(self.parts or (self,)), *(other.parts or (other,)))
        return Constraint(" and ".join(part.name for part in parts), lambda a: intersection(parts, a), parts)

    def __or__(self, other: Constraint) -> Constraint:
        if not isinstance(other, Constraint):
            return NotImplemented
        name = f"({self.name} or {other.name})"
        return Constraint(name, lambda a: product(self.build(a), other.build(a), np.logical_or))

    def __invert__(self) -> Constraint:
        return Constraint(f"not ({self.name})", lambda a: self.build(a).complement())

    def __add__(self, other: Constraint) -> Constraint:
        if not isinstance(other, Constraint):
            return NotImplemented
        return Constraint(f"({self.name}) then ({other.name})", lambda a: concatenation(self.build(a), other.build(a)))

    def named_build(self, alphabet: Alphabet) -> Automaton:
        """Call `build`; error messages name the constraint."""
        try:
            return self.build(alphabet)
        except TrellisError as error:
            raise TrellisError(f"{str(error).removesuffix('.')} (constraint: {self.name}).") from error
        except RecursionError as error:
            raise TrellisError("A constraint is nested too deeply; simplify it.") from error

    def compile(self, vocab: Any) -> Automaton:
        """The minimal automaton over the tokens of a `Vocabulary` or an `Alphabet`; raises if it accepts nothing."""
        alphabet = vocab if isinstance(vocab, Alphabet) else Alphabet.of_vocabulary(vocab)
        built = minimised(intersection(self.parts or (self,), alphabet))
        if built.is_empty:
            raise TrellisError(contradiction(self.parts or (self,), alphabet))
        return built


def intersection(parts: Iterable[Constraint], alphabet: Alphabet) -> Automaton:
    built = (part.named_build(alphabet) for part in parts)
    return reduce(lambda one, other: product(one, other, np.logical_and), built)


def contradiction(parts: Sequence[Constraint], alphabet: Alphabet) -> str:
    """An error message that names the first part after which no sentence is left, either because of this part alone or
    together with the parts before it."""
    for part in parts:
        if part.build(alphabet).is_empty:
            return f"No sentence satisfies the constraint: {part.name}."
    built = [part.build(alphabet) for part in parts]
    so_far = built[0]
    for number, one in enumerate(built[1:], 1):
        so_far = product(so_far, one, np.logical_and)
        if so_far.is_empty:
            pairs = (i for i in range(number) if product(built[i], one, np.logical_and).is_empty)
            other = next(pairs, None)
            before = " and ".join(part.name for part in parts[:number]) if other is None else parts[other].name
            return f"No sentence satisfies the constraint: {parts[number].name}, together with {before}."
    raise AssertionError("the constraint is not empty")


def checked(constraint: Any) -> Constraint:
    """Returns the constraint; raises if the argument is not a `Constraint`."""
    if not isinstance(constraint, Constraint):
        raise TrellisError(
            f"A constraint is needed, such as trellis.constraints.contains('a list'), not {constraint!r}."
        )
    return constraint


def replaced(constraint: Constraint, name: str) -> Constraint:
    """The constraint under another name."""
    return Constraint(name, constraint.build)
