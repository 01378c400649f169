"""Transition operators of a hidden Markov chain, as linear maps between states."""

from trellis.transitions.banded import Banded as Banded
from trellis.transitions.base import (
    Countable as Countable,
    Entry as Entry,
    Operator as Operator,
    Samplable as Samplable,
    Transition as Transition,
)
from trellis.transitions.dense import Dense as Dense, DenseEntry as DenseEntry
from trellis.transitions.kronecker import Kronecker as Kronecker
from trellis.transitions.lazy import LazySoftmax as LazySoftmax
from trellis.transitions.lowrank import LowRank as LowRank
from trellis.transitions.nested import Nested as Nested
from trellis.transitions.softmax import Softmax as Softmax
from trellis.transitions.stacked import Stacked as Stacked
from trellis.transitions.sum import Sum as Sum
from trellis.transitions.varying import (
    Blocks as Blocks,
    ClassBlocks as ClassBlocks,
    LogitBlocks as LogitBlocks,
    PairBlocks as PairBlocks,
    PerStep as PerStep,
    SetBlocks as SetBlocks,
    SplitBlocks as SplitBlocks,
    TimeVarying as TimeVarying,
)
