"""Checks of transitions against their dense matrices."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trellis.inference import discrete, queries
from trellis.testing.close import Check, assert_close, require, run_checks
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import Problem, random_problem, seeded
from trellis.transitions import Blocks, Countable, Dense, Samplable, TimeVarying, Transition
from trellis.transitions.dense import DenseStep
from trellis.types import Belief

BATCH, STEPS, LIVE, SYMBOLS, DRAWS = 2, 4, 2, 4, 100
FALL = 1e-9  # nats that may be lost to rounding
Statistics = Callable[[Any, Tensor], Tensor]


def check_transition(
    build: Callable[..., Transition],
    *parameters: Tensor,
    statistics: Statistics | None = None,
    inverts: bool = True,
) -> None:
    """Check the transition `build(*parameters)`.

    Parameters
    ----------
    build
        A function that builds a transition of 3 to 8 states. The transition is checked against its `dense`, and
        gradients with respect to the parameters are checked against finite differences. If the transition is
        `Countable`, its statistics and M-step are checked too. If it is `Samplable`, its samples are checked.
    parameters
        The arguments of `build`, tensors in float64.
    statistics
        `statistics(transition, pairs)` computes the statistics of expected transitions [n, m, K, K] independently of
        the transition's methods. By default, the transition's own `collect` over all states is used.
    inverts
        Whether samples are drawn by inversion of whole rows, so that they equal those of a dense matrix.

    Examples
    --------
    >>> import torch
    >>> from trellis.testing import check_transition
    >>> from trellis.transitions import Dense
    >>> check_transition(lambda logits: Dense(logits.softmax(-1)), torch.randn(3, 3, dtype=torch.float64))
    """
    case = Case(build, parameters, statistics or own_statistics, inverts)
    checks = [*CHECKS]
    checks += COUNTABLE * isinstance(case.operator, Countable) + SAMPLABLE * isinstance(case.operator, Samplable)
    run_checks(type(case.operator).__name__, case, checks)


class Case:
    """A transition and the inputs to check it with."""

    def __init__(self, build: Callable[..., Any], parameters: Any, statistics: Statistics, inverts: bool) -> None:
        self.build, self.given, self.statistics, self.inverts = build, parameters, statistics, inverts

    @property
    def parameters(self) -> list[Tensor]:
        """Copies of the parameters."""
        return [p.detach().clone() for p in self.given]

    @cached_property
    def operator(self) -> Any:
        return self.build(*self.parameters)

    @property
    def states(self) -> int:
        return self.operator.num_states

    @property
    def matrix(self) -> Tensor:
        """The transition matrix of every sequence and step: [BATCH, STEPS - 1, K, K]."""
        return self.operator.dense().expand(BATCH, STEPS - 1, self.states, self.states)

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Two non-negative vectors for every sequence and step: [BATCH, STEPS - 1, K]."""
        left, right = torch.rand(2, BATCH, STEPS - 1, self.states, generator=seeded(1), dtype=torch.float64)
        return left, right

    @property
    def ids(self) -> tuple[Tensor, Tensor]:
        """The live states before and after every transition, LIVE and LIVE + 1 of them: [BATCH, STEPS - 1, k] each."""
        order = torch.rand(2, BATCH, STEPS - 1, self.states, generator=seeded(2)).argsort(-1)
        return order[0, ..., :LIVE], order[1, ..., : LIVE + 1]

    def problems(self, seed: int, shortest: int = 1) -> list[Problem]:
        """Chains with all or few states live, with and without missing observations."""
        choices = [(live, missing) for live in (None, LIVE) for missing in (0.0, 0.3)]
        return [random_problem(seed, BATCH, STEPS, self.states, SYMBOLS, live, missing=missing, shortest=shortest)
                for live, missing in choices]  # fmt: skip


def own_statistics(operator: Countable, pairs: Tensor) -> Tensor:
    everything = torch.arange(operator.num_states).expand(*pairs.shape[:2], -1)
    return operator.collect(everything, everything, pairs)


def matrix_of_probabilities(case: Case) -> None:
    """`dense` is a matrix [K, K] of probabilities whose rows sum to one."""
    dense = case.operator.dense()
    require(dense.shape == (case.states, case.states), f"its shape is {tuple(dense.shape)}")
    require((dense >= 0).all(), "it has negative entries")
    assert_close(dense.sum(-1), torch.ones(case.states), what="sums of its rows")


def rows(case: Case) -> None:
    """`rows` agrees with the matrix."""
    states = torch.tensor([1, 0, 1])
    assert_close(case.operator.rows(states), case.operator.dense()[states])


def forward(case: Case) -> None:
    """`forward` is p A."""
    left, _ = case.vectors
    assert_close(case.operator.forward(left), torch.einsum("bti,btij->btj", left, case.matrix))


def backward(case: Case) -> None:
    """`backward` is A m."""
    _, right = case.vectors
    assert_close(case.operator.backward(right), torch.einsum("btij,btj->bti", case.matrix, right))


def blocks(case: Case) -> None:
    """`blocks` agrees with the matrix between live states."""
    assert_close(case.operator.blocks(*case.ids), cut_out(case.matrix, *case.ids))


def between(case: Case) -> None:
    """`between` returns, for each step, the block between its live states and those of the next."""
    ids = torch.rand(BATCH, STEPS, case.states, generator=seeded(3)).argsort(-1)[..., :LIVE]
    assert_varying(case.operator.between(ids), Blocks(case.operator.blocks(ids[:, :-1], ids[:, 1:])))


def max_product(case: Case) -> None:
    """`max_product` returns the max and argmax over z of scores(z) + log A(z, z')."""
    for step in range(STEPS - 1):
        scores = case.vectors[0][:, step].log()
        assert_best(scores.unsqueeze(-1) + case.matrix[:, step].log(), *case.operator.max_product(scores))


def ties(case: Case) -> None:
    """`max_product` returns the lowest z of several with the same score."""
    flat = case.build(*((p != 0).to(p) for p in case.parameters))
    several = torch.cartesian_prod(*[torch.tensor([0.0, -1.0], dtype=torch.float64)] * flat.num_states)
    for scores in several.split(BATCH):
        every = scores.unsqueeze(-1) + flat.dense().log()
        found, best = flat.max_product(scores)[1].tolist(), every.numpy().argmax(-2).tolist()
        require(found == best, f"it returned {found} instead of {best}")


def some_states(case: Case) -> None:
    """`forward_at` and `backward_at` agree with the matrix at a few states of each sequence."""
    (left, right), matrix = (v[:, 0] for v in case.vectors), case.matrix[:, 0]
    for live in (1, case.states):
        ids = torch.rand(BATCH, case.states, generator=seeded(4)).argsort(-1)[:, :live]
        onward, back = torch.einsum("bi,bij->bj", left, matrix), torch.einsum("bij,bj->bi", matrix, right)
        assert_close(case.operator.forward_at(left, ids), onward.gather(-1, ids))
        assert_close(case.operator.backward_at(right, ids), back.gather(-1, ids))


def few_states(case: Case) -> None:
    """Products with vectors that are mostly zero agree with the matrix when gradients are off."""
    for live in (0, 1, LIVE):
        few = torch.arange(case.states) < live
        (left, right), expected = (v[:, 0] * few for v in case.vectors), case.matrix[:, 0]
        with torch.no_grad():
            assert_close(case.operator.forward(left), torch.einsum("bi,bij->bj", left, expected))
            assert_close(case.operator.backward(right), torch.einsum("bij,bj->bi", expected, right))
            assert_best(left.log().unsqueeze(-1) + expected.log(), *case.operator.max_product(left.log()))


def gradients(case: Case) -> None:
    """Gradients with respect to the parameters agree with finite differences."""
    (left, right), ids = case.vectors, case.ids

    def everything(*parameters: Tensor) -> tuple[Tensor, ...]:
        operator = case.build(*parameters)
        return operator.forward(left), operator.backward(right), operator.blocks(*ids), operator.dense()

    if not case.given:
        return
    parameters = [p.requires_grad_() for p in case.parameters]
    for name, found in zip(("forward", "backward", "blocks", "dense"), everything(*parameters), strict=True):
        require(found.requires_grad, f"`{name}` has lost the gradient")  # gradcheck ignores outputs without a gradient
    torch.autograd.gradcheck(everything, parameters)


def gradients_of_vectors(case: Case) -> None:
    """Gradients of products with respect to the vectors agree with finite differences."""
    inputs = [v.clone().requires_grad_() for v in case.vectors]
    torch.autograd.gradcheck(lambda x, y: (case.operator.forward(x), case.operator.backward(y)), inputs)


def inference(case: Case) -> None:
    """Likelihoods, filtering, smoothing and Viterbi paths agree with those from the dense matrix."""
    dense = Dense(case.operator.dense())
    for given in case.problems(4):
        ours, theirs = given._replace(transition=case.operator), given._replace(transition=dense)
        for function in (discrete.score, discrete.filter, discrete.smooth, discrete.viterbi):
            for one, other in zip(function(*ours), function(*theirs), strict=True):
                assert_fields_close(one, other)


def enumeration(case: Case) -> None:
    """Likelihoods and posteriors agree with an enumeration of all paths."""
    for given in case.problems(5):
        answer = discrete.smooth(*given.widened()._replace(transition=case.operator))
        paths = given._replace(transition=Dense(case.operator.dense())).paths()
        for b, (path, length) in enumerate(zip(paths, given.lengths.tolist(), strict=True)):
            assert_close(answer.log_likelihood[b], np.log(path.likelihood))
            assert_close(answer.probs[b, :length], path.smoothed())


def missing_words(case: Case) -> None:
    """Posteriors with missing observations agree with those from the dense matrix."""
    for given in case.problems(7):
        operators, no_emission = (case.operator, Dense(case.operator.dense())), cast(Any, None)
        chains = (queries.Chain(given.prior, one, no_emission) for one in operators)
        ours, theirs = (queries.cavity(chain, given.potentials, given.lengths) for chain in chains)
        assert_close(ours, theirs)


def gradients_of_inference(case: Case) -> None:
    """Gradients of the likelihood and of the last state distribution agree with those from the dense matrix."""
    if not case.given:
        return
    parameters = [p.requires_grad_() for p in case.parameters]
    operator = case.build(*parameters)
    given = random_problem(9, BATCH, STEPS, operator.num_states, SYMBOLS, missing=0.3)

    def found(transition: Transition) -> tuple[Tensor, ...]:
        log_norms, belief = discrete.score(*given._replace(transition=cast(Any, transition)))
        loss = log_norms.sum() + belief.probs.square().sum()
        return torch.autograd.grad(loss, parameters, retain_graph=True)

    for one, other in zip(found(operator), found(Dense(operator.dense())), strict=True):
        assert_close(one, other)


def expected(case: Case) -> None:
    """`expected` returns the statistics of left(z) A(z, z') right(z')."""
    left, right = case.vectors
    wanted = case.statistics(case.operator, left.unsqueeze(-1) * case.matrix * right.unsqueeze(-2))
    assert_close(case.operator.expected(left, right), wanted)


def statistics_add(case: Case) -> None:
    """Statistics can be added and scaled."""
    left, right = case.vectors
    twice = case.operator.expected(left, right) + case.operator.expected(2 * left, right)
    assert_close(twice, case.operator.expected(3 * left, right))


def collect(case: Case) -> None:
    """`collect` returns the statistics of transitions between live states."""
    before, after = case.ids
    weights = torch.rand(BATCH, STEPS - 1, LIVE, LIVE + 1, generator=seeded(3), dtype=torch.float64)
    pairs, written = case.operator.blocks(before, after) * weights, torch.zeros_like(case.matrix)
    for b, t in np.ndindex(BATCH, STEPS - 1):
        written[b, t][before[b, t].unsqueeze(-1), after[b, t]] = pairs[b, t]
    assert_close(case.operator.collect(before, after, pairs), case.statistics(case.operator, written))


def collect_everything(case: Case) -> None:
    """`collect` over all states agrees with `expected`."""
    left, right = case.vectors
    everything = torch.arange(case.states).expand(BATCH, STEPS - 1, -1)
    pairs = case.operator.blocks(everything, everything) * left.unsqueeze(-1) * right.unsqueeze(-2)
    assert_close(case.operator.collect(everything, everything, pairs), case.operator.expected(left, right))


def counts(case: Case) -> None:
    """Expected counts agree with those of a time-varying dense matrix."""
    for given in case.problems(6):
        ours, _ = discrete.counts(*given._replace(transition=case.operator))
        apart, _ = discrete.counts(*given._replace(transition=Blocks(case.matrix)))
        assert_close(ours.transition, case.statistics(case.operator, apart.transition), what="transitions")
        assert_close(ours.start, apart.start, what="starts")
        assert_close(ours.emission, apart.emission, what="visits")


def em(case: Case) -> None:
    """Every M-step returns rows that sum to one, and none lowers the likelihood."""
    given, operator = random_problem(8, 8, STEPS, case.states, SYMBOLS, missing=0.1), case.operator
    history = []
    for _ in range(6):
        found, _ = discrete.counts(*given._replace(transition=operator))
        operator = operator.maximised(found.transition)
        assert_close(operator.dense().sum(-1), torch.ones(case.states), what="sums of rows after an M-step")
        history.append(float(found.log_likelihood))
    require((np.diff(history) > -FALL).all(), f"log-likelihoods {history}")
    certain = bool(((operator.dense() == 0) | (operator.dense() == 1)).all())
    require(history[-1] > history[0] or certain, "nothing was learned")


def pseudocounts(case: Case) -> None:
    """With pseudocounts but no counts, zeros stay zero and other entries stay positive. With neither, nothing
    changes."""
    operator, ones = case.operator, torch.ones(2, 1, case.states, dtype=torch.float64)
    nothing = torch.zeros_like(operator.expected(*ones))
    assert_close(operator.maximised(nothing).dense(), operator.dense(), what="without counts")
    even = operator.maximised(nothing, 0.5).dense()
    require(((even > 0) == (operator.dense() > 0)).all(), "a pseudocount changed which transitions are possible")
    assert_close(even.sum(-1), torch.ones(case.states), what="sums of rows")


def sample_next(case: Case) -> None:
    """`sample_next` draws from the rows."""
    for state in range(case.states):
        states = torch.full((BATCH,), state)
        assert_drawn_from(partial(case.operator.sample_next, states), case.matrix[:, 0, state])


def sample_prev(case: Case) -> None:
    """`sample_prev` draws from the weights times a column."""
    for step, state in np.ndindex(STEPS - 1, case.states):
        states, weights = torch.full((BATCH,), state), case.vectors[0][:, step]
        sample = partial(case.operator.sample_prev, states, weights)
        assert_drawn_from(sample, weights * case.matrix[:, step, :, state])


def samples(case: Case) -> None:
    """Paths can be sampled; with `inverts`, they equal the paths sampled from the dense matrix."""
    for given in case.problems(4, shortest=STEPS):
        posterior, prior = [], []
        for transition in (case.operator, Dense(case.operator.dense())):
            posterior.append(discrete.sample_posterior(*given._replace(transition=transition), seeded(5)))
            prior.append(discrete.sample_prior(given.prior.probs[0], transition, BATCH, STEPS, seeded(8)))
        for one, other in (posterior, prior):
            require(one.shape == other.shape, f"paths have the shape {tuple(one.shape)}")
            require(one.equal(other) or not case.inverts, f"sampled {one.tolist()} instead of {other.tolist()}")


CHECKS: list[Check] = [
    matrix_of_probabilities, rows, forward, backward, blocks, between, max_product, ties, some_states, few_states,
    gradients, gradients_of_vectors, inference, enumeration, missing_words, gradients_of_inference,
]  # fmt: skip
COUNTABLE: list[Check] = [expected, statistics_add, collect, collect_everything, counts, em, pseudocounts]
SAMPLABLE: list[Check] = [sample_next, sample_prev, samples]


def cut_out(matrix: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The block matrix[b, t][before[b, t]][:, after[b, t]] of every sequence b and step t."""
    found = [matrix[b, t][before[b, t]][:, after[b, t]] for b, t in np.ndindex(*matrix.shape[:2])]
    return torch.stack(found).view(*before.shape, after.shape[-1])


def assert_best(every: Tensor, values: Tensor, argument: Tensor) -> None:
    """Assert that `values` and `argument` are the max and argmax of [B, K, K'] over the middle axis."""
    assert_close(values, every.amax(-2))
    assert_close(every.gather(-2, argument.unsqueeze(-2)).squeeze(-2), values)


def assert_varying(varying: TimeVarying, blocks: Blocks) -> None:
    """Assert that a time-varying transition behaves as these blocks [B, T-1, k, k]."""
    matrix, live = blocks.dense(), blocks.num_states
    require(varying.num_states == live, f"it has {varying.num_states} states, not {live}")
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
    """Assert that sampling with a regular grid of uniform numbers reproduces weights [BATCH, K]."""
    grid = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    drawn = torch.stack([sample(u.expand(len(weights))) for u in grid], 1).numpy()
    for b, probs in enumerate((weights / weights.sum(-1, keepdim=True)).detach().numpy()):
        require(chi_square(drawn[b], probs) > SMALLEST_P, f"{np.bincount(drawn[b])} of {DRAWS} samples from {probs}")


def assert_fields_close(one: object, other: object) -> None:
    """Assert that two tensors, or two `Belief`s, are equal."""
    one, other = (x.probs if isinstance(x, Belief) else x for x in (one, other))
    assert_close(cast(Tensor, one), cast(Tensor, other))
