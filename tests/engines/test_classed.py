"""The engine that reads class blocks from the transition matrix, against the reference on copies of the blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis import engines
from trellis.emissions import Categorical, Partition
from trellis.engines import classed, reference
from trellis.inference import discrete
from trellis.testing.close import assert_close
from trellis.transitions import Blocks, ClassBlocks, Dense
from trellis.types import Belief, Potentials

SIZES = pytest.mark.parametrize("sizes", [[3, 3, 3], [4, 1, 2], [1, 1, 1], [2, 5, 3]])


def problem(sizes: list[int], batch: int = 5, steps: int = 7) -> tuple[Belief, Dense, Potentials, Tensor]:
    """A chain over classes with some transitions of probability zero, and sequences of different lengths."""
    generator = torch.Generator().manual_seed(sum(sizes))
    partition = Partition(torch.tensor([0, 1, 2, 1, 0]), sizes)
    states = partition.num_states

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    matrix = random(states, states) * (random(states, states) > 0.2) + 1e-3
    matrix[0, -1] = 0.0
    table = random(5, partition.live).log()
    allowed = partition.allowed
    emission = Categorical(table if allowed is None else table.masked_fill(~allowed, -torch.inf), partition, states)
    words = torch.randint(5, (batch, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
    prior = random(batch, states)
    transition = Dense(matrix / matrix.sum(-1, keepdim=True))
    return Belief(prior / prior.sum(-1, keepdim=True)), transition, emission.potentials(words), lengths


@SIZES
@pytest.mark.parametrize("threads", [1, 3])
def test_score_and_expect_equal_the_reference(sizes: list[int], threads: int) -> None:
    prior, transition, potentials, lengths = problem(sizes)
    chain = discrete.live_chain(prior, transition, potentials, lengths)
    assert isinstance(chain.transition, ClassBlocks)
    assert engines.engine(chain.transition, potentials.table) is classed
    copied = chain._replace(transition=Blocks(chain.transition.matrix))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logs, last = classed.score(*chain[:4])  # type: ignore[arg-type]
        found = classed.expect(*chain[:4])  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    expected = reference.expect(*copied[:4])
    assert_close(logs, expected.log_norms)
    assert_close(last.probs, expected.belief.probs)
    assert_close(found.starts, expected.starts)
    assert_close(found.visits, expected.visits)
    assert chain.ids is not None
    assert_close(found.moves, transition.collect(chain.ids[:, :-1], chain.ids[:, 1:], expected.moves))


@SIZES
def test_counts_equal_those_over_all_states(sizes: list[int]) -> None:
    prior, transition, potentials, lengths = problem(sizes)
    found, _ = discrete.counts(prior, transition, potentials, lengths)
    expected, _ = discrete.counts(prior, transition, potentials.widen(transition.num_states), lengths)
    assert_close(found.log_likelihood, expected.log_likelihood)
    assert_close(found.start, expected.start)
    assert_close(found.transition, expected.transition)


def test_a_sequence_that_underflows_is_recomputed() -> None:
    prior, transition, potentials, lengths = problem([3, 3, 3])
    tiny = potentials.table.clone()
    tiny[0] = torch.tensor([-2000.0, -2000.0, 0.0], dtype=torch.float64)
    matrix = transition.matrix.clone()
    matrix[:, 2] = 0.0
    table = potentials._replace(table=tiny)
    only = Belief(prior.probs.clone().index_fill(1, torch.tensor([2]), 0.0))
    found, _ = discrete.score(only, Dense(matrix), table, lengths)
    expected, _ = discrete.score(only, Dense(matrix), table.widen(9), lengths)
    assert float(found.sum()) > -torch.inf
    assert_close(found, expected)


@SIZES
@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_equal_those_over_copies_of_the_blocks(sizes: list[int], threads: int) -> None:
    prior, transition, potentials, lengths = problem(sizes)
    inputs = prior.probs, transition.matrix, potentials.table
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(potentials.rows.shape, generator=generator, dtype=torch.float64)

    def gradients(copied: bool) -> tuple[Tensor, ...]:
        start, matrix, table = (one.clone().requires_grad_() for one in inputs)
        chain = discrete.live_chain(Belief(start), Dense(matrix), potentials._replace(table=table), lengths)
        assert isinstance(chain.transition, ClassBlocks)
        if copied:
            chain = chain._replace(transition=Blocks(chain.transition.matrix))
        norms, last = engines.score(*chain[:4])
        loss = (norms * weights).sum() + last.probs.square().sum()
        return torch.autograd.grad(loss, (start, matrix, table))

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, expected = gradients(False), gradients(True)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
