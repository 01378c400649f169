"""Every emission of the package does what an `Emission` must."""

from __future__ import annotations

import pytest
import torch

from trellis.emissions import Categorical, Gaussian, Partition, Poisson, Product
from trellis.emissions.covariances import COVARIANCES, GaussianPrior
from trellis.emissions.poisson import GammaPrior
from trellis.families.hmm.parameters.base import normalised
from trellis.testing import check_emission
from trellis.testing.close import assert_close
from trellis.testing.emissions import BATCH, STEPS
from trellis.testing.problems import distributions, seeded

STATES, WORDS, TAGS, FEATURES = 4, 6, 3, 2
SUPPORTS = {
    "full": None,
    "sets": torch.tensor([[0, 1], [2, 0], [0, 3], [1, 2], [3, 2], [3, 0]]),
    "even": Partition(torch.tensor([0, 1, 1, 0, 1, 0]), [2, 2]),
    "uneven": Partition(torch.tensor([0, 1, 1, 0, 1, 0]), [3, 1]),
}


def categorical(kind: str) -> Categorical:
    support = SUPPORTS[kind]
    live = {"full": STATES, "sets": 2, "even": 2, "uneven": 3}[kind]
    return normalised(torch.randn(WORDS, live, generator=seeded(1), dtype=torch.float64), support, STATES)


EVERY = pytest.mark.parametrize("support", SUPPORTS)


@EVERY
def test_categorical(support: str) -> None:
    check_emission(categorical(support))


@EVERY
def test_pseudocounts_reach_every_word_that_a_state_may_emit_and_no_other(support: str) -> None:
    emission = categorical(support)
    even = emission.maximised(torch.zeros_like(emission.table), 0.5).dense().exp()
    possible = emission.dense() > -torch.inf
    assert_close(even, possible / possible.sum(0).double())


@EVERY
def test_product(support: str) -> None:
    """Words with tags and without."""
    symbols = torch.randint(WORDS * (TAGS + 1), (BATCH, STEPS), generator=seeded(3))
    symbols[0, 1] = symbols[2, 4] = -1
    emission = Product(categorical(support), distributions(seeded(2), STATES, TAGS).T.log())
    check_emission(emission, observations=symbols)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_gaussian(kind: str) -> None:
    root = torch.randn(STATES, FEATURES, FEATURES, generator=seeded(5), dtype=torch.float64)
    full = root @ root.mT + torch.eye(FEATURES)
    covars = {"full": full, "tied": full[0], "diag": full.diagonal(dim1=1, dim2=2), "spherical": full[:, 0, 0]}
    means = 3 * torch.randn(STATES, FEATURES, generator=seeded(6), dtype=torch.float64)
    prior = GaussianPrior(*(torch.tensor(value).double() for value in (0.0, 0.0, 0.0, 1.0)))
    check_emission(Gaussian(means, covars[kind], kind), prior)


def test_poisson() -> None:
    rates = 5 * torch.rand(STATES, FEATURES, generator=seeded(7), dtype=torch.float64) + 0.5
    check_emission(Poisson(rates), GammaPrior(torch.tensor(0.0).double(), torch.tensor(0.0).double()))
