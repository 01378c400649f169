"""Log-linear emissions: the joint table by hand, samples, and the slope of the bound by differences."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from layered import layered
from trellis.families.factorial.loglinear import LogLinear, emission_slope
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square

SIZES = [(4,), (2, 3), (3, 1, 2)]
STEP, DIFFERENCE = 1e-5, 1e-7


def by_hand(emission: LogLinear) -> torch.Tensor:
    """log p(x | z) for every joint state: [V, K]."""
    columns = []
    for digits in product(*(range(size) for size in emission.sizes)):
        scores = emission.bias + sum(layer[:, z] for layer, z in zip(emission.layers(), digits, strict=True))
        columns.append(scores.log_softmax(0))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_joint_table(sizes: tuple[int, ...]) -> None:
    emission = layered(sizes, scale=3.0).emission
    assert_close(emission.log_probs(torch.arange(emission.num_words)), by_hand(emission))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_predicted_words(sizes: tuple[int, ...]) -> None:
    emission = layered(sizes).emission
    probs = torch.rand(2, emission.num_states, dtype=torch.float64).softmax(-1)
    assert_close(emission.predict(probs), (probs @ by_hand(emission).exp().T).log())


def test_the_partition_of_given_states_and_words_drawn_from_them() -> None:
    emission = layered((2, 3)).emission
    states = torch.tensor(list(product(range(2), range(3))))
    assert_close(emission.log_partition_at(states), emission.log_partition())
    generator = torch.Generator().manual_seed(1)
    for z, digits in enumerate(states):
        drawn = emission.sample(digits.expand(2000, -1), generator)
        assert chi_square(drawn.numpy(), by_hand(emission)[:, z].exp().numpy()) > SMALLEST_P


def test_large_scores_do_not_overflow() -> None:
    emission = layered((2, 2), scale=100.0).emission
    assert_close(emission.log_probs(torch.arange(emission.num_words)), by_hand(emission))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_slope_by_differences(sizes: tuple[int, ...]) -> None:
    emission = layered(sizes).emission
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(emission.num_words, (7,), generator=generator)
    probs = torch.cat([torch.rand(7, size, generator=generator).softmax(-1) for size in sizes], -1).double()
    tilts = torch.randn(probs.shape, generator=generator, dtype=torch.float64)
    slope = emission_slope(emission, words, probs, tilts)

    def value(theta: torch.Tensor, bias: torch.Tensor) -> float:
        return float(emission_slope(LogLinear(theta, bias, sizes), words, probs, tilts).value)

    for name, gradient in (("theta", slope.theta), ("bias", slope.bias)):
        for index in range(gradient.numel()):
            sides = []
            for sign in (1, -1):
                given = {"theta": emission.theta.clone(), "bias": emission.bias.clone()}
                given[name].view(-1)[index] += sign * STEP
                sides.append(value(**given))
            assert float(gradient.flatten()[index]) == pytest.approx((sides[0] - sides[1]) / (2 * STEP), abs=DIFFERENCE)
