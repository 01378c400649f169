"""Grammars on a GPU: the same answers as on a CPU. Without a GPU, its path of training runs on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import trellis
from trellis.config import RunConfig, TrainConfig
from trellis.corpus import Corpus
from trellis.corpus.batches import Sentences
from trellis.families.pcfg.config import PCFGConfig
from trellis.families.pcfg.inside import log_likelihoods
from trellis.families.pcfg.model import PCFG, build
from trellis.families.pcfg.queries import posterior
from trellis.learning.gradient import GradientLearner
from trellis.types import Batch

TEXT = ["a b c b a", "c a", "b", "b c a b"] * 4
EXACT, TF32 = 1e-9, 1e-3
STEPS = 12  # enough to capture a graph and to replay it

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.fixture
def corpus() -> Corpus:
    return trellis.read_corpus(TEXT, tokenizer="whitespace")


def grammar_model(corpus: Corpus, device: str, **options: Any) -> PCFG:
    sizes = {"nonterminals": 5, "preterminals": 7, "dim": 8} | options
    return build(RunConfig(model=PCFGConfig(**sizes)), corpus).to(device)


def answers(corpus: Corpus, device: str) -> list[torch.Tensor]:
    """log p of sentences of several lengths, its gradients, and posteriors."""
    model = grammar_model(corpus, device, rank=3, params="table").double()
    (batch,) = Sentences(corpus["train"], 1 << 10, shuffle=False)
    tokens, lengths = model.without_end(*batch.to(model.device)[:2])
    log_probs = log_likelihoods(model.grammar(), tokens, lengths)
    log_probs.sum().backward()
    found = posterior(model.grammar(), tokens, lengths)
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return [one.detach().cpu() for one in (log_probs, *grads, found.words, found.spans)]


@on_gpu
def test_likelihoods_gradients_and_posteriors_agree(corpus: Corpus) -> None:
    for here, there in zip(answers(corpus, "cpu"), answers(corpus, "cuda"), strict=True):
        torch.testing.assert_close(there, here, rtol=EXACT, atol=EXACT)


def trained(corpus: Corpus, device: str) -> tuple[GradientLearner, list[float]]:
    """A learner after a few steps on sentences of one length, and the log-likelihoods after each."""
    torch.manual_seed(0)
    learner = GradientLearner(grammar_model(corpus, device), TrainConfig(lr=0.02))
    (batch,) = [one for one in Sentences(corpus["train"], 20, shuffle=False) if one.tokens.shape == (3, 6)][:1]
    found = []
    for _ in range(STEPS):
        learner.step(batch)
        with learner.evaluated(), torch.no_grad():
            tokens, lengths = learner.model.without_end(*batch.to(torch.device(device))[:2])
            found.append(float(log_likelihoods(learner.model.grammar(), tokens, lengths).sum()))
    return learner, found


@on_gpu
def test_captured_training_steps_agree(corpus: Corpus) -> None:
    _, expected = trained(corpus, "cpu")
    learner, found = trained(corpus, "cuda")
    assert learner.run.captured
    assert found == pytest.approx(expected, rel=TF32)
    assert found[-1] > found[0]


def test_training_without_waiting_maximises_a_lower_bound(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is log p less the logarithm of the mass of finite trees, which it does not compute."""
    model = grammar_model(corpus, "cpu", nonterminals=9, preterminals=2).double().train()
    batch: Batch = next(iter(Sentences(corpus["train"], 1 << 10)))
    exact = model.log_likelihood(batch, None)[0].item()
    mass = model.grammar().finite.total.item()
    monkeypatch.setattr(PCFG, "synchronises", False)
    bound = model.log_likelihood(batch, None)[0].item()
    assert mass < 1
    assert bound == pytest.approx(exact + len(batch.tokens) * math.log(mass), abs=1e-6)
