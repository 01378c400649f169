"""What every transition operator must do: inherit `OperatorConformance`, say how to build one, and be checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from oracle import SMALLEST_P, chi_square
from strategies import Problem, assert_close, random_problem
from trellis.inference import discrete, queries
from trellis.operators import Dense, Transition
from trellis.types import Belief

BATCH, STEPS, LIVE, SYMBOLS, DRAWS = 2, 4, 2, 4, 100


class OperatorConformance(ABC):
    """Checks against dense algebra. Operators that vary with time have the leading sizes [3] or [2, 3]."""

    inverts = True  # samples are inversions of whole rows and columns, so that they equal those of the dense operator

    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """Numbers, in float64, out of which an operator is built."""

    @abstractmethod
    def build(self, *parameters: Tensor) -> Transition:
        """The operator, differentiable in its parameters."""

    @abstractmethod
    def statistics(self, operator: Transition, pairs: Tensor) -> Tensor:
        """The operator's own statistics of expected transitions [BATCH, STEPS - 1, K, K], from first principles."""

    @pytest.fixture
    def operator(self) -> Transition:
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
        assert dense.shape[-2:] == (operator.num_states, operator.num_states)
        assert (dense >= 0).all()

    def test_rows_sum_to_one(self, operator: Transition) -> None:
        assert_close(operator.dense().sum(-1), torch.ones(operator.dense().shape[:-1]))

    def test_forward(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        assert_close(operator.forward(vectors[0]), torch.einsum("bti,btij->btj", vectors[0], matrix))

    def test_backward(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        assert_close(operator.backward(vectors[1]), torch.einsum("btij,btj->bti", matrix, vectors[1]))

    def test_forward_and_backward_are_adjoint(self, operator: Transition, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        assert_close((operator.forward(left) * right).sum(-1), (left * operator.backward(right)).sum(-1))

    def test_blocks(self, operator: Transition, matrix: Tensor, ids: tuple[Tensor, Tensor]) -> None:
        before, after = ids
        expected = torch.stack(
            [matrix[b, t][before[b, t]][:, after[b, t]] for b in range(BATCH) for t in range(STEPS - 1)]
        )
        assert_close(operator.blocks(before, after), expected.view(BATCH, STEPS - 1, LIVE, LIVE + 1))

    def test_bilinear(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        expected = self.statistics(operator, left.unsqueeze(-1) * matrix * right.unsqueeze(-2))
        assert_close(operator.bilinear(left, right), expected)

    def test_bilinear_adds_and_scales(self, operator: Transition, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        twice = operator.bilinear(left, right) + operator.bilinear(2 * left, right)
        assert_close(twice, operator.bilinear(3 * left, right))

    def test_collect(self, operator: Transition, matrix: Tensor, ids: tuple[Tensor, Tensor]) -> None:
        before, after = ids
        pairs = operator.blocks(before, after) * torch.rand(
            BATCH, STEPS - 1, LIVE, LIVE + 1, generator=seeded(3), dtype=torch.float64
        )
        expected = torch.zeros_like(matrix)
        for b, t in np.ndindex(BATCH, STEPS - 1):
            expected[b, t][before[b, t].unsqueeze(-1), after[b, t]] = pairs[b, t]
        assert_close(operator.collect(before, after, pairs), self.statistics(operator, expected))

    def test_collect_over_all_states_is_bilinear(self, operator: Transition, vectors: tuple[Tensor, Tensor]) -> None:
        left, right = vectors
        everything = torch.arange(operator.num_states).expand(BATCH, STEPS - 1, -1)
        pairs = operator.blocks(everything, everything) * left.unsqueeze(-1) * right.unsqueeze(-2)
        assert_close(operator.collect(everything, everything, pairs), operator.bilinear(left, right))

    @pytest.mark.parametrize("step", range(STEPS - 1))
    def test_at(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor], step: int) -> None:
        here, expected = operator.at(step), matrix[:, step]
        assert_close(here.dense().expand_as(expected), expected)
        assert_close(here.forward(vectors[0][:, step]), torch.einsum("bi,bij->bj", vectors[0][:, step], expected))
        assert_close(here.backward(vectors[1][:, step]), torch.einsum("bij,bj->bi", expected, vectors[1][:, step]))

    @pytest.mark.parametrize("step", range(STEPS - 1))
    def test_best(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor], step: int) -> None:
        scores = vectors[0][:, step].log()
        values, argument = operator.at(step).best(scores)
        every = scores.unsqueeze(-1) + matrix[:, step].log()
        assert_close(values, every.amax(-2))
        assert_close(every.gather(-2, argument.unsqueeze(-2)).squeeze(-2), values)

    def test_the_first_of_the_best_states_is_the_best(self) -> None:
        """Where all moves that are possible weigh the same, and states have one of two scores."""
        flat = self.build(*((p != 0).to(p) for p in self.parameters())).at(0)
        several = torch.cartesian_prod(*[torch.tensor([0.0, -1.0], dtype=torch.float64)] * flat.num_states)
        for scores in several.split(BATCH):
            every = scores.unsqueeze(-1) + flat.dense().log()
            assert flat.best(scores)[1].tolist() == every.numpy().argmax(-2).tolist()

    @pytest.mark.parametrize("live", [0, 1, LIVE])
    def test_products_with_few_states(
        self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor], live: int
    ) -> None:
        """Of the others nothing need be computed, where no gradient is asked for."""
        few = torch.arange(operator.num_states) < live
        left, right, expected = vectors[0][:, 0] * few, vectors[1][:, 0] * few, matrix[:, 0]
        with torch.no_grad():
            assert_close(operator.at(0).forward(left), torch.einsum("bi,bij->bj", left, expected))
            assert_close(operator.at(0).backward(right), torch.einsum("bij,bj->bi", expected, right))
            values, argument = operator.at(0).best(left.log())
        every = left.log().unsqueeze(-1) + expected.log()
        assert_close(values, every.amax(-2))
        assert_close(every.gather(-2, argument.unsqueeze(-2)).squeeze(-2), values)

    def test_sample_next(self, operator: Transition, matrix: Tensor) -> None:
        for step, state in np.ndindex(STEPS - 1, operator.num_states):
            here, states = operator.at(step), torch.full((BATCH,), state)
            self.assert_drawn_from(lambda u, here=here, z=states: here.sample_next(z, u), matrix[:, step, state])

    def test_sample_prev(self, operator: Transition, matrix: Tensor, vectors: tuple[Tensor, Tensor]) -> None:
        for step, state in np.ndindex(STEPS - 1, operator.num_states):
            here, states, weights = operator.at(step), torch.full((BATCH,), state), vectors[0][:, step]
            self.assert_drawn_from(
                lambda u, here=here, z=states, w=weights: here.sample_prev(z, w, u), weights * matrix[:, step, :, state]
            )

    def assert_drawn_from(self, sample: Callable[[Tensor], Tensor], weights: Tensor) -> None:
        """What a regular grid of uniform numbers is turned into agrees with weights [BATCH, K]."""
        grid = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
        drawn = torch.stack([sample(u.expand(BATCH)) for u in grid], 1).numpy()
        for b, probs in enumerate((weights / weights.sum(-1, keepdim=True)).numpy()):
            assert chi_square(drawn[b], probs) > SMALLEST_P

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
        for function in (discrete.score, discrete.filter, discrete.smooth, discrete.mode):
            for one, other in zip(function(*ours), function(*dense), strict=True):
                close_fields(one, other)
        paths = [discrete.sample_posterior(*p, seeded(5)) for p in (ours, dense)]
        assert paths[0].equal(paths[1]) or not self.inverts

    @pytest.mark.parametrize("live", [None, LIVE])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_counts_equal_those_of_every_step_apart(
        self, operator: Transition, matrix: Tensor, live: int | None, missing: float
    ) -> None:
        given = random_problem(6, BATCH, STEPS, operator.num_states, SYMBOLS, live, missing=missing)
        ours, _ = discrete.counts(*given._replace(transition=operator))
        apart, _ = discrete.counts(*given._replace(transition=Dense(matrix)))
        assert_close(ours.transition, self.statistics(operator, apart.transition))
        assert_close(ours.start, apart.start)
        assert_close(ours.emission, apart.emission)

    def test_queries_and_prior_samples_equal_those_of_the_dense_operator(self, operator: Transition) -> None:
        given = random_problem(7, BATCH, STEPS, operator.num_states, SYMBOLS, missing=0.3, shortest=STEPS)
        answers, draws = [], []
        for transition in (operator, Dense(operator.dense())):
            chain = queries.Chain(given.prior, transition, None)
            answers.append(queries.cavity(chain, given.potentials, given.lengths))
            draws.append(discrete.sample_prior(given.prior.probs[0], transition, BATCH, STEPS, seeded(8)))
        assert_close(*answers)
        assert draws[0].equal(draws[1]) or not self.inverts

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


def close_fields(one: object, other: object) -> None:
    """Two tensors, or two beliefs, are equal."""
    if isinstance(one, Belief) and isinstance(other, Belief):
        one, other = one.probs, other.probs
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    assert_close(one, other)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
