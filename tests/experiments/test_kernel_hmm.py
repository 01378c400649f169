"""The study of features: what it measures agrees with what is known; its pictures draw every line."""

from __future__ import annotations

import pytest
import torch

from corpora import split, vocabulary
from experiments.kernel_hmm import feature_study, paper
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.testing.close import assert_close

NEAR = 0.3
CORPUS = Corpus(vocabulary(), {"train": split()}, "made up")


@pytest.mark.parametrize(("dim", "norm"), [(4, 0.5), (8, 0.8)])
def test_measured_errors_are_the_predicted_ones(dim: int, norm: float) -> None:
    found = feature_study.squared_errors(dim, norm, 32, pairs=16)
    for kind in ("positive", "trigonometric"):
        assert found[kind]["measured"] == pytest.approx(found[kind]["predicted"], rel=NEAR)
    assert found["orthogonal"]["measured"] < found["positive"]["predicted"]


def test_trigonometric_features_take_either_sign() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=torch.float64)
    kernel = feature_study.trigonometric(x, torch.randn(8, 3, dtype=torch.float64))
    assert (kernel @ kernel.T < 0).any()
    assert_close((kernel**2).sum(-1), x.square().sum(-1).exp())


def test_learned_features_come_nearer_than_random_ones() -> None:
    found = feature_study.approximations(24, 4, 2.0, 8, steps=60)
    assert 0 < found["learned"] < min(found["random"], found["orthogonal"])
    assert 0 < found["weights"] < found["random"]
    assert feature_study.approximations(24, 4, 2.0, 512, steps=1)["random"] < found["random"]


def test_longer_series_come_nearer() -> None:
    few, more = (feature_study.truncations(24, 3, 1.0, features) for features in (10, 84))
    assert (few["order"], more["order"]) == (2, 6)
    assert 0 < more["taylor"] < few["taylor"] / 10


def test_a_band_raises_the_rank() -> None:
    found = feature_study.ranks(32, 4, 3, 1.0)
    assert found["low rank"]["rank"] == 4
    assert found["with band"]["rank"] > 4


def test_ranks_are_numbers_of_singular_values() -> None:
    torch.manual_seed(0)
    turn, other = (torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64))[0] for _ in range(2))
    values = torch.logspace(0, -12, 40, dtype=torch.float64)
    matrix = turn * values @ other
    assert paper.rank_of(matrix) == feature_study.numerical_rank(matrix, paper.TOLERANCE) == 17


@pytest.mark.parametrize(("band", "least", "most"), [(0, 2, 2), (3, 3, 9)])
def test_the_rank_of_a_model(band: int, least: int, most: int) -> None:
    choices = HMMConfig(states=9, params="lowrank", features=2, band=band, dim=4, tying="none", init_std=1.0)
    found = paper.rank(HMM.build(vocabulary(), choices, True, 0, None), RunConfig(), CORPUS)
    assert least <= found["transition_rank"] <= most
