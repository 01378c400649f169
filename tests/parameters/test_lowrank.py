"""Low-rank parameters against their formulas, whole and under dropout; learning by gradient and by EM."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from corpora import CLASSES, STATES, SUPPORTS, vocabulary
from strategies import Largest
from trellis.config import TrainConfig
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import LowRankParams, LowRankTable
from trellis.families.hmm.parameters.base import WHOLE
from trellis.families.hmm.parameters.dropout import Draw
from trellis.families.hmm.parameters.features import FEATURE_MAPS
from trellis.learning.em import EMLearner
from trellis.learning.gradient import GradientLearner
from trellis.models.files import load, save_model
from trellis.testing.close import assert_close
from trellis.transitions import LowRank, Sum
from trellis.types import Batch

VOCABULARY = vocabulary()
WORDS, DIM, FEATURES = len(VOCABULARY), 2, 6
KINDS = ("lowrank", "lowrank-table")
FALL = 1e-9


def model(kind: str, support: str = "full", **choices: Any) -> HMM:
    given: dict[str, Any] = {"states": STATES, "params": kind, "dim": DIM, "features": FEATURES, "init_std": 1.0}
    return HMM.build(VOCABULARY, HMMConfig(**given | choices), True, 3, SUPPORTS[support]).double()


def batch(lanes: int = 3, steps: int = 8, seed: int = 0) -> Batch:
    tokens = torch.randint(WORDS, (lanes, steps), generator=torch.Generator().manual_seed(seed))
    return Batch(tokens, torch.full((lanes,), steps), torch.ones(lanes, dtype=torch.bool), True, True)


def weights_of(hmm: HMM, features: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
    """phi(u) . phi(v) + B, not normalised, by their formulas, into the states `ids` (None: all): [K, K']."""
    params, relative = hmm.params, False
    if isinstance(params, LowRankTable):
        left, band = params.row_logits.split([FEATURES, params.width], -1)
        right = params.column_logits
    else:
        assert isinstance(params, LowRankParams)
        left = params.features(params.nets["move"](params.embed("in")) * params.scale)
        right = params.features(params.embed("out") * params.scale)
        band = left[:, :0] if params.band is None else params.band * params.pace
        relative = True
    chosen = slice(None) if features is None else features
    weights = left[:, chosen].exp() @ right[:, chosen].exp().T
    columns = torch.arange(STATES) if ids is None else ids
    units = weights[:, columns].mean(-1) if relative else torch.ones(STATES)
    for z in range(STATES):
        for o in range(band.shape[1]):
            if 0 <= z + o - band.shape[1] // 2 < STATES:
                weights[z, z + o - band.shape[1] // 2] += band[z, o].exp() * units[z]
    return weights[:, columns]


def shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", [0, 3])
def test_transitions_follow_their_formula(kind: str, band: int) -> None:
    hmm = model(kind, band=band)
    assert isinstance(hmm.params.parts().transition, Sum if band else LowRank)
    assert_close(hmm.params.parts().transition.dense(), shares(weights_of(hmm)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", [0, 3])
def test_dropout_restricts_before_normalising(kind: str, band: int) -> None:
    hmm = model(kind, "even", band=band)
    ids, features = torch.tensor([0, 2, 3, 4, 8]), torch.tensor([1, 5, 0])
    dropped = Draw(ids, Partition(CLASSES, [2, 2, 1]), features=features)
    expected = weights_of(hmm, features, ids)
    assert_close(hmm.params.parts(dropped).transition.dense(), shares(expected[ids]))
    rows = torch.tensor([7, 1, 1, 4])
    found = hmm.params.parts(dropped).entry(rows).blocks(torch.arange(4), torch.arange(len(ids)))
    assert_close(found, shares(expected[rows]))
    ascending = torch.tensor([1, 4, 7])
    beliefs = torch.eye(3, dtype=torch.float64)
    assert_close(hmm.params.parts(dropped).entry(ascending).forward(beliefs), shares(expected[ascending]))


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize(
    "choices", [{"params": "lowrank"}, {"params": "lowrank", "band": 4}, {"params": "lowrank-table"}]
)
def test_loss_and_gradients_are_those_of_the_dense_matrix(support: str, choices: dict[str, Any]) -> None:
    hmm = model(choices["params"], support, **choices)
    tokens = batch().tokens
    start, _, emission = hmm.params.parts().start, None, hmm.params.parts().emission.dense().exp()
    matrix, total = hmm.params.parts().transition.dense(), torch.zeros((), dtype=torch.float64)
    for line in tokens:
        belief = start * emission[line[0]]
        for word in line[1:]:
            belief = (belief @ matrix) * emission[word]
        total = total + belief.sum().log()
    loss, _ = hmm.log_likelihood(batch(), None)
    assert_close(loss, total)
    weights = [w for w in hmm.params.parameters() if w.requires_grad]
    for one, other in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(total, weights), strict=True):
        assert_close(one, other, 1e-8)


@pytest.mark.parametrize(
    "choices",
    [
        {"support": "full"},
        {"support": "full", "band": 3, "feature_dropout": 0.5},
        {"support": "uneven", "dropout": "state"},
        {"support": "full", "dropout": "state", "band": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_learn_it(kind: str, choices: dict[str, Any]) -> None:
    hmm = model(kind, **choices)
    learner = GradientLearner(hmm, TrainConfig(learner="gradient", lr=0.05), 60)
    text = batch(4, 12)
    before = float(hmm.eval().log_likelihood(text, None)[0].detach())
    hmm.train()
    for _ in range(60):
        assert learner.step(text).log_likelihood.isfinite()
    assert float(hmm.eval().log_likelihood(text, None)[0].detach()) > before + 10


@pytest.mark.parametrize("band", [0, 8])
def test_a_step_of_training_makes_nothing_of_the_size_of_the_matrix(band: int) -> None:
    states, features, rate = 2048, 8, 0.25
    choices = {"states": states, "features": features, "band": band, "dropout": "state", "dropout_rate": rate}
    learner = GradientLearner(model("lowrank", **choices), TrainConfig(learner="gradient"), 10)
    text = batch(4, 6)
    with Largest() as largest:
        learner.step(text)
        learner.step(text._replace(fresh=torch.zeros(4, dtype=torch.bool), all_fresh=False))
    assert 0 < largest.entries <= 4 * states * (features + band)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_every_feature_map_can_be_chosen(name: str) -> None:
    hmm = model("lowrank", feature_map=name, temperature=2.0)
    assert hmm.params.num_features == FEATURES
    assert_close(hmm.params.parts().transition.dense(), shares(weights_of(hmm)))


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("band", [0, 3])
def test_em_never_falls(support: str, band: int) -> None:
    hmm = model("lowrank-table", support, features=2, band=band)
    learner, text = EMLearner(hmm, TrainConfig(pseudocount=0.0)), batch(5, 9)
    values = []
    for _ in range(12):
        values.append(float(learner.step(text).log_likelihood))
        learner.end_epoch()
    assert all(after >= before - FALL for before, after in pairwise(values))
    assert values[-1] > values[0] + 1
    assert_close(hmm.params.parts().transition.dense().sum(-1), torch.ones(STATES))


def test_em_refuses_dropout_of_features() -> None:
    with pytest.raises(TrellisError, match="dropout"):
        EMLearner(model("lowrank-table", feature_dropout=0.5), TrainConfig())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", [0, 3])
def test_files_keep_it(kind: str, band: int, tmp_path: Any) -> None:
    hmm = model(kind, "even", band=band, feature_map="orthogonal")
    save_model(tmp_path / "model", hmm)
    again = load(tmp_path / "model")
    assert isinstance(again, HMM)
    assert_close(again.params.parts().transition.dense(), hmm.params.parts().transition.dense())
    assert_close(again.params.parts().emission.table, hmm.params.parts().emission.table)


def test_feature_draws_differ_and_repeat() -> None:
    one, other = (model("lowrank", feature_dropout=0.5).train().dropout for _ in range(2))
    draws = [one.draw(None) or WHOLE for _ in range(5)]
    kept = [draw.features for draw in draws if draw.features is not None]
    assert [len(ids.unique()) for ids in kept] == [FEATURES // 2] * 5
    assert len({tuple(sorted(ids.tolist())) for ids in kept}) > 1
    assert all(torch.equal(ids, (other.draw(None) or WHOLE).features) for ids in kept)


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"feature_map": "cosine"}, "feature_map"),
        ({"features": 0}, "features"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"dropout": "unstructured"}, "unstructured"),
        ({"feature_dropout": 1.0}, "feature_dropout"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_choices(kind: str, choices: dict[str, Any], word: str) -> None:
    with pytest.raises(TrellisError, match=word):
        model(kind, **choices)
