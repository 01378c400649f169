"""Inference on a block of sequences: on a CPU, a small problem in NumPy, and the E-step of a few long sequences in one
compiled function; everything else by `inference.discrete`."""

import numpy as np
import torch

from trellis.estimators.blocks import Block
from trellis.estimators.inputs import Array
from trellis.inference import discrete
from trellis.inference.weighted import given
from trellis.kernels.scan import banded
from trellis.learning.em import expect_whole
from trellis.parts import Parts
from trellis.transitions import Dense
from trellis.types import Belief, Counts, Potentials

underflows = np.errstate(all="ignore")  # decorator: NumPy does not warn or raise if probabilities underflow
Arrays = tuple[banded.Sequences, Array, Array, Array]
Found = tuple[Array, ...]  # log p(x), expected starts [K], transitions [K, K] and visits [N, K]


@underflows
def log_likelihood(parts: Parts, block: Block) -> float:
    """log p(x), summed over the sequences."""
    if run := solved(parts, block):
        return float(np.add.reduce(run.log_likelihood()))
    found = discrete.log_likelihood(*problem(parts, block))
    return float(found.sum() if block.weights is None else found @ block.weights)


@underflows
def smooth(parts: Parts, block: Block) -> tuple[float, Array]:
    """log p(x), summed over the sequences, and p(z_t | x) [B, T, K]."""
    if run := solved(parts, block):
        return float(np.add.reduce(run.log_likelihood())), run.smoothed()
    answer = discrete.smooth(*problem(parts, block))
    return float(answer.log_likelihood.sum()), answer.probs.cpu().numpy()


@underflows
def viterbi(parts: Parts, block: Block) -> tuple[float, Array]:
    """The log-probability of the Viterbi paths, summed over the sequences, and the paths [B, T]."""
    if (arrays := small(parts, block, viterbi=True)) and (found := banded.viterbi(*arrays)):
        return float(np.add.reduce(found[1])), found[0]
    path, scores = discrete.viterbi(*problem(parts, block))
    return float(scores.sum()), path.cpu().numpy()


@underflows
def expect(parts: Parts, block: Block) -> Counts:
    """The E-step: return the expected counts of a block."""
    if not (found := fused(parts, block) or banded_counts(parts, block)):
        return expect_whole(parts, block.observations, block.lengths, block.states, block.weights)
    counts = Counts(*map(torch.from_numpy, found))
    return counts._replace(emission=parts.emission.statistics(block.observations, counts.emission))


def fused(parts: Parts, block: Block) -> Found | None:
    """The E-step of a few long sequences in compiled code; None for any other block."""
    start, transition, emission = parts
    if block.steps is None or not isinstance(transition, Dense) or not (steps := block.steps()):
        return None
    table = emission.potentials(block.observations).table
    return steps.expect(start.numpy(), transition.matrix.numpy(), table.numpy())


def banded_counts(parts: Parts, block: Block) -> Found | None:
    """The E-step of a small problem in NumPy; None for any other block."""
    if not (run := solved(parts, block)):
        return None
    entry, moves, visits = run.expected()
    return np.array(np.add.reduce(run.log_likelihood())), np.add.reduce(entry * run.prior), moves, visits


def solved(parts: Parts, block: Block) -> banded.Run | None:
    """The solution of a small problem; None if the problem is not small, or if the solution is not reliable."""
    if not (arrays := small(parts, block)):
        return None
    sequences, *chain = arrays
    return sequences.solve(*chain)


def small(parts: Parts, block: Block, viterbi: bool = False) -> Arrays | None:
    """The arrays of a small problem: sequences, start, transition matrix and log-potentials."""
    start, transition, emission = parts
    if block.sequences is None or not isinstance(transition, Dense):
        return None
    if viterbi and not banded.is_small(block.shape, transition.num_states, viterbi=True):
        return None
    table = emission.potentials(block.observations).table
    return block.sequences(), start.numpy(), transition.matrix.numpy(), table.numpy()


def problem(parts: Parts, block: Block) -> tuple[Belief, Dense, Potentials, torch.Tensor]:
    """The inputs of `trellis.inference.discrete`."""
    start, transition, emission = parts
    prior = Belief(start.expand(len(block.lengths), -1))
    potentials = emission.potentials(block.observations)
    potentials = potentials if block.states is None else given(potentials, block.states)
    return prior, transition, potentials, block.lengths
