"""Noisy-or emissions by hand, and a factorial HMM that speaks through one: exact answers, learning, files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from corpora import fhmm, split
from trellis.config import TrainConfig
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.factorial.loglinear import NoisyOr
from trellis.families.factorial.variational_em import StepwiseVariationalLearner
from trellis.learning.gradient import GradientLearner
from trellis.models.files import load, save_model
from trellis.tasks.lm import evaluate
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, Paths, chi_square

SIZES = (2, 3)
TOKENS = torch.tensor([[1, 2, 4, 0], [5, 3, 2, 6]])


def some_emission(dtype: torch.dtype = torch.float64) -> NoisyOr:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(6, sum(SIZES), generator=generator, dtype=torch.float64) - 2
    return NoisyOr(logits.to(dtype), (torch.randn(6, generator=generator, dtype=torch.float64) - 2).to(dtype), SIZES)


def by_hand(emission: NoisyOr) -> torch.Tensor:
    """p(x | z) for every joint state, from the probabilities of silence: [V, K]."""
    columns = []
    for states in product(*(range(size) for size in SIZES)):
        silence = emission.bias.exp()
        for layer, z in zip(emission.layers(), states, strict=True):
            silence = silence * layer[:, z].exp()
        columns.append((1 - silence) / (1 - silence).sum())
    return torch.stack(columns, -1)


def test_the_joint_table_and_what_it_predicts() -> None:
    emission = some_emission()
    table = by_hand(emission)
    assert_close(emission.log_probs(torch.arange(6)).exp(), table)
    probs = torch.rand(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    assert_close(emission.predict(probs).exp(), probs @ table.T)


def test_words_drawn_from_states() -> None:
    emission = some_emission()
    states = torch.tensor(list(product(range(2), range(3))))
    assert_close(emission.log_partition_at(states), emission.log_partition())
    generator = torch.Generator().manual_seed(1)
    for z, digits in enumerate(states):
        drawn = emission.sample(digits.expand(2000, -1), generator)
        assert chi_square(drawn.numpy(), by_hand(emission)[:, z].numpy()) > SMALLEST_P


def test_many_rare_words_in_float32() -> None:
    """Probabilities of 1e-5 beside silence that is nearly certain."""
    logits = torch.full((50_000, 4), -11.0) + torch.randn(50_000, 4, generator=torch.Generator().manual_seed(2))
    emission = NoisyOr(logits, torch.full((50_000,), -12.0), (2, 2))
    assert_close(emission.log_probs(torch.arange(50_000)).exp().sum(0), torch.ones(4), 1e-5)


def test_posteriors_and_paths_against_the_list_of_all_paths() -> None:
    model = fhmm(SIZES, combine="noisy-or")
    joint, lengths = model.exact(), torch.tensor([4, 3])
    posterior, (paths, log_probs) = model.smooth(TOKENS, lengths), model.best_path(TOKENS, lengths)
    for b, n in enumerate(lengths.tolist()):
        weights = joint.emission.log_probs(TOKENS[b, :n]).exp().detach().numpy()
        matrices = joint.transition.dense().detach().numpy()[None].repeat(n - 1, 0)
        every = Paths(joint.start.detach().numpy(), matrices, weights)
        assert_close(posterior.log_likelihood[b].exp(), every.likelihood)
        probs = every.smoothed().reshape(n, *SIZES)
        assert_close(posterior.probs[b, :n], np.concatenate([probs.sum(2), probs.sum(1)], -1))
        assert float(log_probs[b].exp()) <= every.likelihood
        assert (paths[b, n:] == -1).all()
        assert (paths[b, :n] < torch.tensor(SIZES)).all()


def test_it_learns_by_gradient_and_is_saved(tmp_path: Path) -> None:
    model, text = fhmm((2, 2), combine="noisy-or"), split()
    before = evaluate(model, Sentences(text, 64)).log_likelihood
    learner = GradientLearner(model, replace(TrainConfig(), lr=0.05))
    for batch in itertools.islice(itertools.cycle(Sentences(text, 64)), 30):
        learner.step(batch)
    assert evaluate(model, Sentences(text, 64)).log_likelihood > before + 5
    save_model(tmp_path / "m.safetensors", model)
    assert load(tmp_path / "m.safetensors").log_prob("the cat") == model.log_prob("the cat")


def test_what_it_has_not() -> None:
    model = fhmm((2, 2), combine="noisy-or")
    with pytest.raises(TrellisError, match="no mean field"):
        model.sampled_log_likelihood(TOKENS)
    with pytest.raises(TrellisError, match="needs gradient training"):
        StepwiseVariationalLearner(model, TrainConfig())
    with pytest.raises(TrellisError, match=r"model\.combine"):
        fhmm((2, 2), combine="and")
