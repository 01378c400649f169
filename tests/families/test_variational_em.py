"""Variational EM: the bound never falls, one layer is Baum-Welch, checkpoints resume to the same bits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from corpora import fhmm, split
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner, VariationalEMLearner
from trellis.learning.gradient import GradientLearner
from trellis.tasks.lm import evaluate
from trellis.training.loop import fit

CONFIG = replace(FHMMTrainConfig(), pseudocount=0.0, sweeps=3, epochs=4, lr=0.05, log_every=2)
ROUNDING = 1e-8


def epoch(learner: VariationalEMLearner, batches: Sentences) -> float:
    total = sum(float(learner.step(batch).log_likelihood) for batch in batches)
    learner.end_epoch()
    return total


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
@pytest.mark.parametrize(("sizes", "dim"), [((2, 3), 0), ((2, 2, 2), 3)])
def test_the_bound_never_falls(bound: str, sizes: tuple[int, ...], dim: int) -> None:
    model = fhmm(sizes, bound, dim)
    learner = VariationalEMLearner(model, replace(CONFIG, inner_steps=10))
    batches = Sentences(split(), 64, shuffle=True)
    totals = [epoch(learner, batches) for _ in range(6)]
    assert all(after >= before - ROUNDING for before, after in itertools.pairwise(totals))
    assert totals[-1] > totals[0] + 1
    assert evaluate(model, Sentences(split(), 64)).log_likelihood >= totals[-1] - ROUNDING


def test_one_layer_is_baum_welch() -> None:
    """After an M-step to the optimum, the emission is the share of expected visits."""
    model, text = fhmm((3,)), split()
    learner = VariationalEMLearner(model, replace(CONFIG, inner_steps=2000))
    visits = torch.zeros(3, 7, dtype=torch.float64)
    for batch in Sentences(text, 64, shuffle=False):
        inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        probs = model.smooth(batch.tokens, batch.lengths, exact=True).probs[inside]
        visits += probs.T @ torch.nn.functional.one_hot(batch.tokens[inside], 7).double()
    epoch(learner, Sentences(text, 64, shuffle=False))
    words = model.params.emission().log_probs(torch.arange(7)).exp().T
    torch.testing.assert_close(words, visits / visits.sum(-1, keepdim=True), rtol=0, atol=1e-3)


def test_stepwise_learning_improves_the_likelihood() -> None:
    model, text = fhmm((2, 2)), split()
    before = evaluate(model, Sentences(text, 64)).log_likelihood
    learner = StepwiseVariationalLearner(model, CONFIG)
    for batch in itertools.islice(itertools.cycle(Sentences(text, 64)), 60):
        learner.step(batch)
    assert evaluate(model, Sentences(text, 64)).log_likelihood > before + 5


def test_gradients_of_the_exact_likelihood_learn_too() -> None:
    model, text = fhmm((2, 2)), split()
    learner = GradientLearner(model, CONFIG)
    before = evaluate(model, Sentences(text, 64)).log_likelihood
    for batch in Sentences(text, 64):
        learner.step(batch)
    assert evaluate(model, Sentences(text, 64)).log_likelihood > before


LEARNERS = {"em": VariationalEMLearner, "stepwise": StepwiseVariationalLearner}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_training_cut_anywhere_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """A checkpoint after every step; a training that stops there and is resumed by a new learner ends alike."""
    finals = []
    for run, stops in (("whole", []), ("cut", [3, 7, 12, 13])):
        for stop in (*stops, 0):
            model = fhmm((2, 2))
            config = replace(CONFIG, checkpoint_steps=1, max_steps=stop, epochs=0 if stop else 4, inner_steps=3)
            learner = LEARNERS[name](model, config)
            fit(learner, Sentences(split(), 64), lambda: 1.0, config, tmp_path / run, resume=True)
        finals.append(model.state_dict())
    for key, value in finals[0].items():
        assert torch.equal(value, finals[1][key]), key


def test_a_checkpoint_of_another_model_is_refused() -> None:
    learner = StepwiseVariationalLearner(fhmm((2, 2)), CONFIG)
    with pytest.raises(TrellisError, match="does not match"):
        StepwiseVariationalLearner(fhmm((3, 2)), CONFIG).restore(learner.state_tensors(), learner.state_json())


def test_learning_leaves_words_never_seen_possible() -> None:
    model = fhmm((2, 2))
    learner = VariationalEMLearner(model, replace(CONFIG, weight_decay=0.01, pseudocount=0.1))
    epoch(learner, Sentences(split(sentences=3), 64))
    assert isinstance(model, FHMM)
    assert model.log_prob("the <unk> dog") > -torch.inf
