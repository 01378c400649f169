"""What every transition must do: inherit from the suites for what it is, say how to build one, and be checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracle import SMALLEST_P, chi_square
from strategies import Problem, assert_close, random_problem
from trellis.inference import discrete, queries
from trellis.transitions import Blocks, Countable, Dense, Samplable, TimeVarying, Transition
from trellis.transitions.dense import DenseStep
from trellis.types import Belief

BATCH, STEPS, LIVE, SYMBOLS, DRAWS = 2, 4, 2, 4, 100
FALL = 1e-9  # nats that rounding may take


class TransitionConformance(ABC):
    """Checks of a `Transition` against dense algebra."""

    inverts = True  # samples are inversions of whole rows and columns, so that they equal those of the dense operator

    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """Numbers, in float64, out of which a transition is built."""

    @abstractmethod
    def build(self, *parameters: Tensor) -> Any:
        """The transition, differentiable in its parameters."""

    @pytest.fixture
    def operator(self) -> Any:
        return self.build(*self.parameters())

    @pytest.fixture
    def matrix(self, operator: Transition) -> Tensor:
        """A of every sequence and step: [BATCH, STEPS - 1, K, K]."""
        return operator.dense().expand(BATCH, STEPS - 1, operator.num_states, operator.num_states)

    @pytest.fixture
    def vectors(self, operator: Transition) -> tuple[Tensor, Tensor]:
        """Two non-negative vectors for every sequence and step: [BATCH, STEPS - 1, K]."""
        left, right = torch.rand(2, BATCH, STEPS - 1, operator.num_states, generator=seeded(1), dtype=torch.float64)
        return left, right

    @pytest.fixture
    def ids(self, operator: Transition) -> tuple[Tensor, Tensor]:
        """Live states before and after every transition, not equally many: [BATCH, STEPS - 1, k]."""
        order = torch.rand(2, BATCH, STEPS - 1, operator.num_states, generator=seeded(2)).argsort(-1)
        return order[0, ..., :LIVE], order[1, ..., : LIVE + 1]

    def test_shape_and_sign(self, operator: Transition) -> None:
        dense = operator.dense()
        assert dense.shape == (operator.num_states, operator.num_states)
        assert (dense >= 0).all()

    def test_rows_sum_to_one(self, operator: Transition) -> None:
        assert_close(operator.dense().sum(-1), torch.ones(operator.num_states))

    def test_rows(self, operator: Transition) -> None:
        states = torch.tensor([1, 0, 1])
        assert_close(operator.rows(states), operator.dense()[states])

    def test_forward(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        assert_close(operator.forward(vectors[0]), torch.einsum("bti,btij->btj", vectors[0], matrix))

    def test_backward(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        assert_close(operator.backward(vectors[1]), torch.einsum("btij,btj->bti", matrix, vectors[1]))

    def test_forward_and_backward_are_adjoint(self, operator: Transition, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        assert_close((operator.forward(left) * right).sum(-1), (left * operator.backward(right)).sum(-1))

    def test_blocks(self, operator: Transition, matrix: Tensor, ids: tuple[Tensor, Tensor]) -> None:
        assert_close(operator.blocks(*ids), cut_out(matrix, *ids))

    def test_between_live_states(self, operator: Transition) -> None:
        """Every operator of the varying transition is the block between the live states of its step."""
        ids = torch.rand(BATCH, STEPS, operator.num_states, generator=seeded(3)).argsort(-1)[..., :LIVE]
        varying, blocks = operator.between(ids), Blocks(operator.blocks(ids[:, :-1], ids[:, 1:]))
        assert_varying(varying, blocks)

    def test_max_product(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        for step in range(STEPS - 1):
            scores = vectors[0][:, step].log()
            values, argument = operator.max_product(scores)
            every = scores.unsqueeze(-1) + matrix[:, step].log()
            assert_close(values, every.amax(-2))
            assert_close(every.gather(-2, argument.unsqueeze(-2)).squeeze(-2), values)

    def test_the_first_of_the_best_states_is_the_best(self) -> None:
        """Where all moves that are possible weigh the same, and states have one of two scores."""
        flat = self.build(*((p != 0).to(p) for p in self.parameters()))
        several = torch.cartesian_prod(*[torch.tensor([0.0, -1.0], dtype=torch.float64)] * flat.num_states)
        for scores in several.split(BATCH):
            every = scores.unsqueeze(-1) + flat.dense().log()
            assert flat.max_product(scores)[1].tolist() == every.numpy().argmax(-2).tolist()

    @pytest.mark.parametrize("live", [0, 1, LIVE])
    def test_products_with_few_states(
        self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor], live: int
    ) -> None:
        """Of the others nothing need be computed, where no gradient is asked for."""
        few = torch.arange(operator.num_states) < live
        left, right, expected = vectors[0][:, 0] * few, vectors[1][:, 0] * few, matrix[:, 0]
        with torch.no_grad():
            assert_close(operator.forward(left), torch.einsum("bi,bij->bj", left, expected))
            assert_close(operator.backward(right), torch.einsum("bij,bj->bi", expected, right))
            values, argument = operator.max_product(left.log())
        every = left.log().unsqueeze(-1) + expected.log()
        assert_close(values, every.amax(-2))
        assert_close(every.gather(-2, argument.unsqueeze(-2)).squeeze(-2), values)

    def test_gradients(self, vectors: tuple[Tensor, Tensor], ids: tuple[Tensor, Tensor]) -> None:
        left, right = vectors

        def everything(*parameters: Tensor) -> tuple[Tensor, ...]:
            operator = self.build(*parameters)
            return operator.forward(left), operator.backward(right), operator.blocks(*ids), operator.dense()

        assert torch.autograd.gradcheck(everything, [p.requires_grad_() for p in self.parameters()])

    def test_gradients_through_the_vectors(self, operator: Transition, vectors: tuple[Tensor, Tensor]) -> None:
        inputs = [v.clone().requires_grad_() for v in vectors]
        assert torch.autograd.gradcheck(lambda x, y: (operator.forward(x), operator.backward(y)), inputs)

    @pytest.mark.parametrize("live", [None, LIVE])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_inference_equals_that_of_the_dense_operator(
        self, operator: Transition, live: int | None, missing: float
    ) -> None:
        given = random_problem(4, BATCH, STEPS, operator.num_states, SYMBOLS, live, missing=missing)
        ours, dense = given._replace(transition=operator), given._replace(transition=Dense(operator.dense()))
        for function in (discrete.score, discrete.filter, discrete.smooth, discrete.viterbi):
            for one, other in zip(function(*ours), function(*dense), strict=True):
                assert_fields_close(one, other)

    def test_queries_equal_those_of_the_dense_operator(self, operator: Transition) -> None:
        for live in (None, LIVE):
            given = random_problem(7, BATCH, STEPS, operator.num_states, SYMBOLS, live, missing=0.3)
            chains = (queries.Chain(given.prior, one, None) for one in (operator, Dense(operator.dense())))
            assert_close(*(queries.cavity(chain, given.potentials, given.lengths) for chain in chains))

    def test_gradients_of_inference(self) -> None:
        parameters = [p.requires_grad_() for p in self.parameters()]
        operator = self.build(*parameters)
        given = random_problem(9, BATCH, STEPS, operator.num_states, SYMBOLS, missing=0.3)
        expected = self.gradients(given, Dense(operator.dense()), parameters)
        for one, other in zip(self.gradients(given, operator, parameters), expected, strict=True):
            assert_close(one, other)

    def gradients(self, given: Problem, transition: Transition, parameters: list[Tensor]) -> tuple[Tensor, ...]:
        """Of log p(x) and of the belief carried out."""
        log_norms, belief = discrete.score(*given._replace(transition=transition))
        loss = log_norms.sum() + belief.probs.square().sum()
        return torch.autograd.grad(loss, parameters, retain_graph=True)


class CountableConformance(TransitionConformance):
    """Checks of a `Countable` transition: its statistics and its M-step."""

    @abstractmethod
    def statistics(self, operator: Any, pairs: Tensor) -> Tensor:
        """The operator's own statistics of expected transitions [BATCH, STEPS - 1, K, K], from first principles."""

    def test_expected(self, operator: Countable, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        expected = self.statistics(operator, left.unsqueeze(-1) * matrix * right.unsqueeze(-2))
        assert_close(operator.expected(left, right), expected)

    def test_statistics_add_and_scale(self, operator: Countable, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        twice = operator.expected(left, right) + operator.expected(2 * left, right)
        assert_close(twice, operator.expected(3 * left, right))

    def test_collect(self, operator: Countable, matrix: Tensor, ids: tuple[Tensor, Tensor]) -> None:
        before, after = ids
        pairs = operator.blocks(before, after) * torch.rand(
            BATCH, STEPS - 1, LIVE, LIVE + 1, generator=seeded(3), dtype=torch.float64
        )
        expected = torch.zeros_like(matrix)
        for b, t in np.ndindex(BATCH, STEPS - 1):
            expected[b, t][before[b, t].unsqueeze(-1), after[b, t]] = pairs[b, t]
        assert_close(operator.collect(before, after, pairs), self.statistics(operator, expected))

    def test_collect_over_all_states_is_expected(self, operator: Countable, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        everything = torch.arange(operator.num_states).expand(BATCH, STEPS - 1, -1)
        pairs = operator.blocks(everything, everything) * left.unsqueeze(-1) * right.unsqueeze(-2)
        assert_close(operator.collect(everything, everything, pairs), operator.expected(left, right))

    @pytest.mark.parametrize("live", [None, LIVE])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_counts_equal_those_of_every_step_apart(
        self, operator: Countable, matrix: Tensor, live: int | None, missing: float
    ) -> None:
        given = random_problem(6, BATCH, STEPS, operator.num_states, SYMBOLS, live, missing=missing)
        ours, _ = discrete.counts(*given._replace(transition=operator))
        apart, _ = discrete.counts(*given._replace(transition=Blocks(matrix)))
        assert_close(ours.transition, self.statistics(operator, apart.transition))
        assert_close(ours.start, apart.start)
        assert_close(ours.emission, apart.emission)

    def test_em_never_lowers_the_likelihood(self, operator: Countable) -> None:
        given, history = random_problem(8, 8, STEPS, operator.num_states, SYMBOLS, missing=0.1), []
        for _ in range(6):
            counts, _ = discrete.counts(*given._replace(transition=operator))
            operator = operator.maximised(counts.transition)
            assert_close(operator.dense().sum(-1), torch.ones(operator.num_states))
            history.append(float(counts.log_likelihood))
        assert (np.diff(history) > -FALL).all()
        assert history[-1] > history[0] or bool(((operator.dense() == 0) | (operator.dense() == 1)).all())

    def test_pseudocounts_and_zeros(self, operator: Countable) -> None:
        """Without counts a pseudocount leaves what was possible possible, and the rest impossible; without either the
        operator stays."""
        nothing = torch.zeros_like(operator.expected(*torch.ones(2, 1, operator.num_states).double()))
        assert_close(operator.maximised(nothing).dense(), operator.dense())
        even = operator.maximised(nothing, 0.5).dense()
        assert ((even > 0) == (operator.dense() > 0)).all()
        assert_close(even.sum(-1), torch.ones(operator.num_states))


class SamplableConformance(TransitionConformance):
    """Checks of a `Samplable` transition."""

    def test_sample_next(self, operator: Samplable, matrix: Tensor) -> None:
        for state in range(operator.num_states):
            states = torch.full((BATCH,), state)
            assert_drawn_from(partial(operator.sample_next, states), matrix[:, 0, state])

    def test_sample_prev(self, operator: Samplable, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        for step, state in np.ndindex(STEPS - 1, operator.num_states):
            states, weights = torch.full((BATCH,), state), vectors[0][:, step]
            sample = partial(operator.sample_prev, states, weights)
            assert_drawn_from(sample, weights * matrix[:, step, :, state])

    @pytest.mark.parametrize("live", [None, LIVE])
    def test_samples_equal_those_of_the_dense_operator(self, operator: Samplable, live: int | None) -> None:
        given = random_problem(4, BATCH, STEPS, operator.num_states, SYMBOLS, live, missing=0.3, shortest=STEPS)
        posterior, prior = [], []
        for transition in (operator, Dense(operator.dense())):
            posterior.append(discrete.sample_posterior(*given._replace(transition=transition), seeded(5)))
            prior.append(discrete.sample_prior(given.prior.probs[0], transition, BATCH, STEPS, seeded(8)))
        for one, other in (posterior, prior):
            assert one.shape == other.shape
            assert one.equal(other) or not self.inverts


def cut_out(matrix: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """matrix[b, t][before[b, t]][:, after[b, t]] of every sequence and step."""
    blocks = [matrix[b, t][before[b, t]][:, after[b, t]] for b, t in np.ndindex(*matrix.shape[:2])]
    return torch.stack(blocks).view(*before.shape, after.shape[-1])


def assert_varying(varying: TimeVarying, blocks: Blocks) -> None:
    """A varying transition is these blocks [B, T-1, k, k], in every use."""
    matrix, live = blocks.dense(), blocks.num_states
    assert varying.num_states == live
    assert_close(varying.dense().expand_as(matrix), matrix)
    some = torch.tensor([1, 0])
    assert_close(varying.some(some).dense().expand_as(matrix[some]), matrix[some])
    left, right = torch.rand(2, *matrix.shape[:2], live, generator=seeded(21), dtype=torch.float64)
    pairs = matrix * left.unsqueeze(-1) * right.unsqueeze(-2)
    assert_close(varying.expected(left, right), pairs if varying.dense().dim() == 4 else pairs.sum(0))
    for t in range(matrix.shape[1]):
        here, dense = varying.at(t), DenseStep(matrix[:, t])
        assert_close(here.forward(left[:, t]), dense.forward(left[:, t]))
        assert_close(here.backward(right[:, t]), dense.backward(right[:, t]))
        assert_close(here.dense().expand_as(matrix[:, t]), matrix[:, t])


def assert_drawn_from(sample: Callable[[Tensor], Tensor], weights: Tensor) -> None:
    """What a regular grid of uniform numbers is turned into agrees with weights [BATCH, K]."""
    grid = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    drawn = torch.stack([sample(u.expand(len(weights))) for u in grid], 1).numpy()
    for b, probs in enumerate((weights / weights.sum(-1, keepdim=True)).numpy()):
        assert chi_square(drawn[b], probs) > SMALLEST_P


def assert_fields_close(one: object, other: object) -> None:
    """Two tensors, or two beliefs, are equal."""
    if isinstance(one, Belief) and isinstance(other, Belief):
        one, other = one.probs, other.probs
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    assert_close(one, other)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
