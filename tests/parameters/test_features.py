"""Feature maps: their kernels in expectation, exactly, or up to an order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from trellis.errors import TrellisError
from trellis.families.hmm.parameters.features import FEATURE_MAPS, Exponential, FeatureMap, Taylor, gaussian, orthogonal
from trellis.testing.close import assert_close

DIM, MANY = 3, 60_000
SIX_DEVIATIONS = 6.0


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def vectors(count: int = 2) -> Tensor:
    return 0.7 * torch.randn(count, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("draw", [gaussian, orthogonal])
def test_random_features_estimate_the_exponential_kernel(draw: object) -> None:
    x, y = vectors()
    features = Exponential(draw(MANY, DIM).double(), learned=False)
    terms = MANY * (features(x[None]) + features(y[None])).exp()
    exact = (x @ y).exp()
    deviation = (exact**2 * ((x + y).square().sum().exp() - 1) / MANY).sqrt()
    assert abs(terms.mean() - exact) < SIX_DEVIATIONS * deviation
    if draw is gaussian:
        assert_close(terms.var() / MANY, deviation**2 * torch.ones(()), tolerance=0.2 * float(deviation**2))


def test_orthogonal_rows() -> None:
    weight = orthogonal(7, DIM)
    assert weight.shape == (7, DIM)
    for rows in weight.split(DIM):
        products = rows @ rows.T
        assert_close(products, products.diag().diag(), 1e-4)


def test_the_taylor_map_is_the_series_up_to_its_order() -> None:
    features = Taylor(DIM, 34).double()
    assert (features.order, features.num_features) == (3, 20)
    x, y = vectors(4), vectors(5).flip(0)
    products = softplus(x) @ softplus(y).T
    assert_close(features(x).exp() @ features(y).exp().T, sum(products**n / math.factorial(n) for n in range(4)), 1e-6)


def test_too_few_features_for_a_taylor_map() -> None:
    with pytest.raises(TrellisError, match="at least"):
        Taylor(DIM, DIM)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_some_features_are_a_part_of_all(name: str) -> None:
    features: FeatureMap = FEATURE_MAPS[name](DIM, 8).double()
    kept = torch.tensor([2, 0])
    assert_close(features(vectors(), kept), features(vectors())[:, kept])
    assert (sum(p.requires_grad for p in features.parameters()) > 0) == (name == "learned")


def test_low_precision() -> None:
    features = Exponential(gaussian(8, DIM), learned=True)
    x = vectors(5).float().requires_grad_()
    exact, low = features(x), features(x.bfloat16())
    assert low.dtype is torch.float32
    assert_close(low, exact, 0.05)
    low.square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
