"""Every emission of the package does what an `Emission` must."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance import seeded
from emission_conformance import BATCH, STEPS, EmissionConformance, SymbolConformance, VectorConformance
from strategies import assert_close, distributions
from trellis.emissions import Categorical, Gaussian, Partition, Poisson, Product
from trellis.emissions.gaussian import COVARIANCES, GaussianPrior
from trellis.emissions.poisson import GammaPrior
from trellis.families.hmm.parameters.base import normalised

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


@pytest.fixture(params=SUPPORTS)
def support(request: pytest.FixtureRequest) -> str:
    return request.param


class TestCategorical(SymbolConformance):
    @pytest.fixture
    def emission(self, support: str) -> Categorical:
        return categorical(support)

    def build(self) -> Categorical:
        return categorical("full")

    def test_pseudocounts_reach_every_word_that_a_state_may_emit_and_no_other(self, emission: Categorical) -> None:
        even = emission.maximised(torch.zeros_like(emission.table), 0.5).dense().exp()
        possible = emission.dense() > -torch.inf
        assert_close(even, possible / possible.sum(0).double())


class TestProduct(EmissionConformance):
    @pytest.fixture
    def emission(self, support: str) -> Product:
        return Product(categorical(support), distributions(seeded(2), STATES, TAGS).T.log())

    def build(self) -> Product:
        return Product(categorical("full"), distributions(seeded(2), STATES, TAGS).T.log())

    def observe(self, emission: Product) -> Tensor:
        """Words with tags and without."""
        symbols = torch.randint(WORDS * (TAGS + 1), (BATCH, STEPS), generator=seeded(3))
        symbols[0, 1] = symbols[2, 4] = -1
        return symbols


@pytest.mark.parametrize("kind", COVARIANCES)
class TestGaussian(VectorConformance):
    prior = GaussianPrior(*(torch.tensor(value).double() for value in (0.0, 0.0, 0.0, 1.0)))

    @pytest.fixture
    def emission(self, kind: str) -> Gaussian:
        root = torch.randn(STATES, FEATURES, FEATURES, generator=seeded(5), dtype=torch.float64)
        full = root @ root.mT + torch.eye(FEATURES)
        covars = {"full": full, "tied": full[0], "diag": full.diagonal(dim1=1, dim2=2), "spherical": full[:, 0, 0]}
        means = 3 * torch.randn(STATES, FEATURES, generator=seeded(6), dtype=torch.float64)
        return Gaussian(means, covars[kind], kind)

    def build(self) -> Gaussian:
        return Gaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), "diag")


class TestPoisson(VectorConformance):
    prior = GammaPrior(torch.tensor(0.0).double(), torch.tensor(0.0).double())

    def build(self) -> Poisson:
        return Poisson(5 * torch.rand(STATES, FEATURES, generator=seeded(7), dtype=torch.float64) + 0.5)
