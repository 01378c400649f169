"""Transition operators of a hidden Markov chain, as linear maps between states."""

from trellis.transitions.banded import Banded
from trellis.transitions.base import Countable, Entry, Operator, Samplable, Transition
from trellis.transitions.dense import Dense, DenseEntry
from trellis.transitions.kronecker import Kronecker
from trellis.transitions.lowrank import LowRank
from trellis.transitions.softmax import Softmax
from trellis.transitions.stacked import Stacked
from trellis.transitions.sum import Sum
from trellis.transitions.varying import Blocks, LogitBlocks, PerStep, TimeVarying

__all__ = [
    "Banded",
    "Blocks",
    "Countable",
    "Dense",
    "DenseEntry",
    "Entry",
    "Kronecker",
    "LogitBlocks",
    "LowRank",
    "Operator",
    "PerStep",
    "Samplable",
    "Softmax",
    "Stacked",
    "Sum",
    "TimeVarying",
    "Transition",
]
