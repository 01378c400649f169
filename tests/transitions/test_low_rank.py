"""Low-rank, banded and added operators conform; they never write out A, and never overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from operators import of_band, of_features
from strategies import Largest
from trellis.inference import discrete
from trellis.testing import check_transition
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, cells, chi_square
from trellis.testing.problems import distributions, random_problem, seeded
from trellis.testing.transitions import assert_fields_close, assert_varying
from trellis.transitions import Banded, Blocks, Dense, LowRank, PerStep, Sum
from trellis.transitions.banded import enter_band
from trellis.transitions.lowrank import DRAWS_PER_FEATURE
from trellis.types import Belief, Groups, Potentials

STATES, RANK, WIDTH = 5, 2, 3
DRAWS = 4000


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def through_features(operator: LowRank, pairs: Tensor) -> Tensor:
    """Each transition [n, m, K, K] shared out among the features it may have gone through: [2, K, F]."""
    through = torch.einsum("if,jf->ijf", operator.into, operator.out) / operator.dense().unsqueeze(-1)
    shared = pairs.sum((0, 1)).unsqueeze(-1) * through
    return torch.stack([shared.sum(1), shared.sum(0)])


def by_offset(operator: Banded, pairs: Tensor) -> Tensor:
    """The pairs [n, m, K, K] within the band: [K, w]."""
    found = torch.zeros_like(operator.probs)
    for z in range(operator.num_states):
        for o in range(operator.width):
            after = z + o - operator.width // 2
            if 0 <= after < operator.num_states:
                found[z, o] = pairs[:, :, z, after].sum()
    return found


def low_rank(*features: Tensor) -> LowRank:
    return of_features(*features)[0]


@pytest.mark.parametrize("rank", [RANK, 1])  # with one, fewer features than live states: inference goes through it
def test_low_rank(rank: int) -> None:
    features = normal(13, STATES, rank), normal(14, STATES, rank)
    check_transition(low_rank, *features, inverts=False, statistics=through_features)
    kernel = features[0].exp() @ features[1].exp().T
    assert_close(low_rank(*features).dense(), kernel / kernel.sum(-1, keepdim=True))
    assert_close(of_features(*features)[1], kernel.sum(-1).log())


@pytest.mark.parametrize("width", [1, WIDTH, 4, STATES + 3])
def test_banded(width: int) -> None:
    weights = normal(15, STATES, width)
    check_transition(lambda band: of_band(band)[0], weights, statistics=by_offset)
    assert_close(of_band(weights)[0].dense(), band_logits(weights).softmax(-1))


def band_logits(weights: Tensor) -> Tensor:
    """Written out, -inf outside the band: [K, K]."""
    full = torch.full((STATES, STATES), -torch.inf, dtype=torch.float64)
    for z in range(STATES):
        for o in range(weights.shape[1]):
            if 0 <= z + o - weights.shape[1] // 2 < STATES:
                full[z, z + o - weights.shape[1] // 2] = weights[z, o]
    return full


def added(left: Tensor, right: Tensor, band: Tensor) -> Sum:
    return Sum.normalised(of_features(left, right), of_band(band))


def through_both(operator: Sum, pairs: Tensor) -> Tensor:
    (low, low_weight), (band, band_weight) = operator.shares()
    assert isinstance(low, LowRank)
    assert isinstance(band, Banded)
    shares = pairs / operator.dense()
    through = through_features(low, shares * low.dense() * low_weight[:, None])
    within = by_offset(band, shares * band.dense() * band_weight[:, None])
    return torch.cat([through.flatten(), within.flatten()])


@pytest.mark.parametrize("rank", [RANK, 1])
def test_sum(rank: int) -> None:
    left, right, band = normal(13, STATES, rank), normal(14, STATES, rank), normal(15, STATES, WIDTH)
    check_transition(added, left, right, band, inverts=False, statistics=through_both)
    weights = left.exp() @ right.exp().T + band_logits(band).exp()
    assert_close(added(left, right, band).dense(), weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("features", [2, 9])
def test_live_states_go_through_the_features_or_through_blocks(features: int) -> None:
    states, live = 12, 6
    operator = Sum.normalised(
        of_features(normal(1, states, features), normal(2, states, features)), of_band(normal(3, states, WIDTH))
    )
    sets = torch.arange(states).view(2, live)
    rows = torch.randint(2, (3, 7), generator=seeded(4))
    for operator_ in (operator, operator.parts[0]):
        expected = operator_.blocks(sets[rows[:, :-1]], sets[rows[:, 1:]])
        for groups in (None, Groups(sets, rows), Groups(sets, rows, True)):
            varying = operator_.between(sets[rows], groups)
            assert isinstance(varying, Blocks) == (features >= live)
            assert_close(varying.dense(), expected)
    given = random_problem(5, 3, 7, states, 5, live)
    ours = discrete.smooth(*given._replace(transition=operator))
    dense = discrete.smooth(*given._replace(transition=Dense(operator.dense())))
    for one, other in zip(ours, dense, strict=True):
        assert_fields_close(one, other)


@pytest.mark.parametrize("live", [WIDTH, 6])
def test_bands_between_live_states(live: int) -> None:
    """Of any order; by places where the band is narrower than these are many."""
    logits = normal(1, 12, WIDTH).requires_grad_()
    operator, _ = of_band(logits)
    ids = torch.rand(2, 4, 12, generator=seeded(2)).argsort(-1)[..., :live]
    varying, blocks = operator.between(ids), Blocks(operator.blocks(ids[:, :-1], ids[:, 1:]))
    assert isinstance(varying, PerStep) == (live > WIDTH)
    assert_varying(varying, blocks)
    probs = normal(3, 2, live).exp()
    for name in ("forward", "backward"):
        ours, theirs = (getattr(one.at(1), name)(probs) for one in (varying, blocks))
        assert_close(*(torch.autograd.grad(one.square().sum(), logits, retain_graph=True)[0] for one in (ours, theirs)))


@pytest.mark.parametrize("banded", [False, True])
def test_samples_of_paths_agree_with_enumeration(banded: bool) -> None:
    low = of_features(normal(1, 3, 2), normal(2, 3, 2))
    operator = Sum.normalised(low, of_band(normal(3, 3, 2))) if banded else low[0]
    given = random_problem(7, 1, 3, 3, shortest=3)._replace(transition=Dense(operator.dense()))
    many = Potentials(given.potentials.table, given.potentials.rows.expand(DRAWS, -1))
    prior, (paths,) = Belief(given.prior.probs.expand(DRAWS, -1)), given.paths()
    drawn = discrete.sample_posterior(prior, operator, many, None, seeded(1))
    assert chi_square(cells(drawn.numpy(), 3), paths.posterior) > SMALLEST_P
    chain = paths.weights / paths.potentials[range(3), paths.states].prod(1)
    drawn = discrete.sample_prior(given.prior.probs[0], operator, DRAWS, 3, seeded(2))
    assert chi_square(cells(drawn.numpy(), 3), chain) > SMALLEST_P


@pytest.mark.parametrize("banded", [False, True])
def test_operators_ready_for_many_draws_draw_alike(banded: bool) -> None:
    low = of_features(3 * normal(1, STATES, RANK), 3 * normal(2, STATES, RANK))
    operator = Sum.normalised(low, of_band(normal(3, STATES, WIDTH))) if banded else low[0]
    few, many = operator.for_draws(DRAWS_PER_FEATURE * RANK - 1), operator.for_draws(DRAWS)
    tables = [(one.parts[0] if isinstance(one, Sum) else one).aliases for one in (few, many)]
    assert [table is not None for table in tables] == [False, True]
    uniform = torch.rand(DRAWS, generator=seeded(4), dtype=torch.float64)
    for state, expected in enumerate(operator.dense()):
        drawn = many.sample_next(torch.full((DRAWS,), state), uniform)
        assert chi_square(drawn.numpy(), expected.numpy()) > SMALLEST_P


def test_float32_samples_reach_every_state() -> None:
    """One uniform number chooses a feature and then one of many states: its last bits must count."""
    states = 1 << 14
    operator = LowRank(torch.full((states, 256), 1 / 256), torch.full((states, 256), 1 / states))
    drawn = discrete.sample_prior(torch.full((states,), 1 / states), operator, 2000, 2, seeded(3))[:, 1]
    assert chi_square((drawn % 64).numpy(), torch.full((64,), 1 / 64).numpy()) > SMALLEST_P


def learn(*problem: Any) -> None:
    discrete.log_likelihood(*problem).sum().backward()


@pytest.mark.parametrize(
    "work",
    [learn, discrete.filter, discrete.smooth, discrete.counts, discrete.sample_posterior],
    ids=lambda f: f.__name__,
)
def test_nothing_of_the_size_of_the_matrix_is_ever_made(work: Callable[..., Any]) -> None:
    states, features, width = 4096, 8, 8
    left, right = (normal(seed, states, features).requires_grad_() for seed in (1, 2))
    band = normal(3, states, width).requires_grad_()
    prior = Belief(torch.full((2, states), 1 / states, dtype=torch.float64))
    potentials = Potentials(normal(4, 5, states), torch.randint(5, (2, 4), generator=seeded(5)))
    with Largest() as largest:
        operator = Sum.normalised(of_features(left, right), of_band(band))
        work(prior, operator, potentials)
    assert 0 < largest.entries <= 4 * states * (features + width)


def test_float32_at_65536_states_without_overflow() -> None:
    states, features = 1 << 16, 4
    left, right = (300 * normal(seed, states, features).float() for seed in (1, 2))
    operator, log_norm = of_features(left, right)
    assert log_norm.isfinite().all()
    assert_close(operator.backward(torch.ones(1, states)), torch.ones(1, states))
    moved = operator.forward(torch.full((1, states), 1 / states))
    assert_close(moved.sum(-1), torch.ones(1))
    exact = of_features(left.double(), right.double())[0].rows(torch.arange(8))
    assert_close(operator.rows(torch.arange(8)), exact, 1e-3)


def test_features_that_no_state_has() -> None:
    """A map with zeros may leave a feature, not a state, without weight."""
    left, right = normal(1, 4, 3).requires_grad_(), normal(2, 4, 3)
    right[:, 1] = -torch.inf
    operator, _ = of_features(left, right.requires_grad_())
    assert_close(operator.dense().sum(-1), torch.ones(4))
    (operator.dense() * normal(3, 4, 4)).sum().backward()
    assert left.grad is not None
    assert right.grad is not None
    assert left.grad.isfinite().all()
    assert right.grad.isfinite().all()


def test_low_precision_products() -> None:
    left, right = (normal(seed, 8, 4).float().requires_grad_() for seed in (1, 2))
    probs = distributions(seeded(3), 2, 8).float()
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        operator, _ = of_features(left, right, dtype)
        assert (operator.low is None) == (dtype is torch.float32)
        moved, pulled = operator.forward(probs), operator.backward(probs)
        gradients = torch.autograd.grad((moved.square() + pulled.square()).sum(), (left, right))
        results.append([moved, pulled, *gradients])
    for one, other in zip(*results, strict=True):
        assert one.dtype is other.dtype is torch.float32
        assert_close(one, other, 0.02)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3, 4], [0, 2, 3], [4], [1, 4]])
def test_a_band_between_kept_states(kept: list[int]) -> None:
    weights, ids = normal(1, STATES, WIDTH), torch.tensor(kept)
    expected = band_logits(weights)[:, kept]
    operator, log_norm = of_band(weights, ids)
    assert_close(operator.dense(), expected[kept].softmax(-1))
    assert_close(log_norm, expected[kept].logsumexp(-1))
    rows = torch.tensor([3, 0, 0, 4, 2, 1])
    entry, log_norm = enter_band(weights, rows, ids)
    assert_close(log_norm, expected[rows].logsumexp(-1))
    found = entry.blocks(torch.arange(len(rows)), torch.arange(len(kept)))
    assert_close(found, expected[rows].softmax(-1).nan_to_num(0.0))
