"""Constraints on sentences, as automata over tokens.

>>> from trellis.constraints import contains, length
>>> contains("interest rates") & ~contains("bank") & length(8, 15)
<Constraint: contains 'interest rates' and not (contains 'bank') and 8 to 15 words>
"""

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton
from trellis.constraints.constraint import Constraint
from trellis.constraints.constructors import (
    all_of,
    anything,
    banned,
    begins,
    contains,
    ends,
    exactly,
    from_fsm,
    length,
    one_of,
    ordered,
    positions,
    regex,
    table,
    template,
    tokens,
)

__all__ = [
    "Alphabet",
    "Automaton",
    "Constraint",
    "all_of",
    "anything",
    "banned",
    "begins",
    "contains",
    "ends",
    "exactly",
    "from_fsm",
    "length",
    "one_of",
    "ordered",
    "positions",
    "regex",
    "table",
    "template",
    "tokens",
]
