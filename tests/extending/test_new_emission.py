"""A new emission, outside the package and in one file, trained by EM as an estimator and as a language model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from grouped import Grouped, GroupedHMM

from corpora import split, vocabulary
from operators import of_band, of_features
from trellis.config import TrainConfig
from trellis.corpus import Sentences
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import PartsParams
from trellis.families.hmm.parameters.base import normalised
from trellis.learning.em import EMLearner, StepwiseEMLearner
from trellis.testing import check_emission
from trellis.testing.close import assert_close
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense, Sum

GROUPS = torch.tensor([0, 1, 0, 2, 1, 2, 0])
STATES, FALL = 3, 1e-9  # nats that rounding may take


def emission() -> Grouped:
    return Grouped(GROUPS, distributions(seeded(1), STATES, 3).T)


def test_conformance() -> None:
    check_emission(emission())


def test_as_an_estimator() -> None:
    X = np.random.RandomState(0).randint(len(GROUPS), size=200)
    model = GroupedHMM(STATES, groups=GROUPS.tolist(), n_iter=20, tol=-np.inf, n_init=2, random_state=0).fit(X)
    history = np.array(model.monitor_.history)
    assert history[-1] > history[0]
    assert (np.diff(history) > -FALL).all()
    assert_close(torch.from_numpy(model.groupprob_).sum(1), np.ones(STATES))
    assert np.isclose(model.score(X), model.score_samples(X)[0])
    assert len(model.sample(5, random_state=1)[0]) == 5


def language_model() -> HMM:
    start, matrix = distributions(seeded(2), STATES), distributions(seeded(3), STATES, STATES)
    return HMM(vocabulary(), PartsParams(start, Dense(matrix), emission()))


def test_as_a_language_model() -> None:
    model, batches = language_model(), Sentences(split(), 1 << 12)
    learner, history = EMLearner(model, TrainConfig(pseudocount=0.0)), []
    for _ in range(15):
        history.append(sum(float(learner.step(batch).log_likelihood) for batch in batches))
        learner.end_epoch()
    assert history[-1] > history[0]
    assert (np.diff(history) > -FALL).all()
    assert np.isclose(sum(p for _, p in model.predict("the cat", n=100)), 1.0)
    assert len(model.sample(2, seed=1)) == 2
    assert model.infill("the ___ sees").gaps[0]


def test_parts_of_parts_are_trained_too() -> None:
    """A sum of transitions, and an emission by classes."""
    low, band = of_features(*torch.randn(2, 4, 2, generator=seeded(4)).double()), of_band(torch.zeros(4, 3).double())
    words = normalised(torch.randn(7, 2, generator=seeded(5)).double(), Partition(GROUPS.clamp(max=1), [2, 2]), 4)
    params = PartsParams(distributions(seeded(6), 4), Sum.normalised(low, band), words)
    before = {name: value.clone() for name, value in params.state_dict().items()}
    learner = EMLearner(HMM(vocabulary(), params), TrainConfig(pseudocount=0.0))
    history = []
    for _ in range(3):
        history.append(sum(float(learner.step(batch).log_likelihood) for batch in Sentences(split(), 1 << 12)))
        learner.end_epoch()
    assert history[2] > history[1] > history[0]
    moved = {name for name, value in params.state_dict().items() if not value.equal(before[name])}
    assert {"transition.parts.0.into", "transition.parts.1.probs", "transition.weights", "emission.table"} <= moved
    assert "emission.partition.word_class" in before


def test_tensors_that_could_not_be_trained_are_refused() -> None:
    several = emission()
    several.more = (torch.ones(2), torch.ones(3))
    with pytest.raises(TrellisError, match=r"Grouped\.more contains several tensors"):
        PartsParams(distributions(seeded(2), STATES), Dense(distributions(seeded(3), STATES, STATES)), several)


def test_stepwise_and_from_a_checkpoint() -> None:
    (first, *_), learner = list(Sentences(split(), 64)), StepwiseEMLearner(language_model(), TrainConfig())
    learner.step(first)
    again = StepwiseEMLearner(language_model(), TrainConfig())
    again.restore({name: value.clone() for name, value in learner.state_tensors().items()}, learner.state_json())
    for one in (learner, again):
        one.step(first)
    for ours, theirs in zip(learner.params.parameters(), again.params.parameters(), strict=True):
        assert ours.equal(theirs)
