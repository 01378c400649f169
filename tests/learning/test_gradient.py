"""Gradient learning against independent arithmetic: AdamW by hand, torch's schedulers, the average as a plain sum."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from torch import Tensor, nn

from corpora import WORDS, hmm
from trellis import distributed
from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.learning.average import WeightAverage
from trellis.learning.base import GradientModel
from trellis.learning.gradient import GradientLearner
from trellis.learning.schedule import make_schedule
from trellis.models.base import Memo
from trellis.types import Batch

TOLERANCE = 1e-12  # relative, float64
CONFIG = TrainConfig(lr=0.1, beta1=0.8, beta2=0.95, weight_decay=0.02, clip=0.5, schedule="cosine", warmup=2)
STEPS = 9


class Quadratic(GradientModel):
    """log-likelihood = −Σ (tokens − weight)² / 2 + weight · belief, and a belief that counts the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4, dtype=torch.float64))

    def log_likelihood(self, batch: Batch, state: Tensor | None) -> tuple[Tensor, Tensor]:
        belief = torch.zeros(4, dtype=torch.float64) if state is None else state
        log_likelihood = -((batch.tokens - self.weight) ** 2).sum() / 2 + self.weight @ belief
        return log_likelihood, belief + 0.1 * self.weight / self.weight.detach()

    def state_to_tensors(self, state: Tensor) -> dict[str, Tensor]:
        return {"belief": state}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        return tensors["belief"]


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    ones = torch.ones(2, dtype=torch.int64)
    return [Batch(torch.randint(-3, 3, (2, 4), generator=generator), 4 * ones, ones < 0) for _ in range(STEPS)]


def cosine(step: int, total: int = STEPS, warmup: int = 2) -> float:
    done = max(0, step - warmup) / (total - 1 - warmup)
    return min(1, (step + 1) / warmup) * (1 + math.cos(math.pi * done)) / 2


def adamw_by_hand(decay: float) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Weights, their average and the log-likelihoods, from the formulas of AdamW, clipping and averaging."""
    weight = np.linspace(-1, 1, 4)
    average, first, second, belief = weight.copy(), np.zeros(4), np.zeros(4), np.zeros(4)
    log_likelihoods = []
    for step, batch in enumerate(batches()):
        tokens = batch.tokens.numpy()
        log_likelihoods.append(-((tokens - weight) ** 2).sum() / 2 + weight @ belief)
        gradient = -((tokens - weight).sum(0) + belief) / tokens.size
        gradient *= min(1, CONFIG.clip / (np.linalg.norm(gradient) + 1e-6))
        first = CONFIG.beta1 * first + (1 - CONFIG.beta1) * gradient
        second = CONFIG.beta2 * second + (1 - CONFIG.beta2) * gradient**2
        unbiased = first / (1 - CONFIG.beta1 ** (step + 1)), second / (1 - CONFIG.beta2 ** (step + 1))
        rate = CONFIG.lr * cosine(step)
        weight = weight * (1 - rate * CONFIG.weight_decay) - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        kept = min(decay, (1 + step) / (10 + step))
        average = kept * average + (1 - kept) * weight
        belief = belief + 0.1
    return weight, average, log_likelihoods


def test_steps_follow_the_formulas() -> None:
    model = Quadratic()
    learner = GradientLearner(model, replace(CONFIG, average=0.3), STEPS)
    results = [learner.step(batch) for batch in batches()]
    weight, average, log_likelihoods = adamw_by_hand(0.3)
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=TOLERANCE)
    np.testing.assert_allclose([float(r.log_likelihood) for r in results], log_likelihoods, rtol=TOLERANCE)
    assert [result.tokens for result in results] == [8] * STEPS
    with learner.evaluated():
        assert not model.training
        np.testing.assert_allclose(model.weight.detach().numpy(), average, rtol=TOLERANCE)
    assert model.training
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=TOLERANCE)


def test_padding_does_not_change_the_gradient() -> None:
    """It is that of the log-likelihood of each sentence alone, over the tokens that there are."""
    lengths, fresh = torch.tensor([2, 5]), torch.tensor([True, True])
    tokens = torch.randint(len(WORDS), (2, 9), generator=torch.Generator().manual_seed(0))
    learner = GradientLearner(hmm().requires_grad_(), replace(CONFIG, clip=0.0), STEPS)
    alone = hmm().requires_grad_()
    for row, length in zip(tokens, lengths, strict=True):
        log_likelihood, _ = alone.log_likelihood(Batch(row[None, :length], length[None], fresh[:1]), None)
        (-log_likelihood / lengths.sum()).backward()
    learner.step(Batch(tokens, lengths, fresh))
    for weight, expected in zip(learner.weights.values(), alone.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, expected.grad, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_belief_is_forgotten_between_epochs() -> None:
    learner = GradientLearner(Quadratic(), CONFIG, STEPS)
    learner.step(batches()[0])
    assert learner.belief.keys() == {"belief"}
    learner.end_epoch()
    assert learner.belief == {}


def test_a_batch_may_be_part_of_a_larger_one() -> None:
    """The gradient is per token of the larger batch, and random numbers depend on the step alone."""
    torch.manual_seed(5)
    learners = [GradientLearner(Quadratic(), replace(CONFIG, clip=0.0), STEPS) for _ in range(2)]
    batch = batches()[0]
    learners[0].step(batch._replace(total=16))
    drawn = torch.rand(1)
    learners[1].step(batch)
    whole, alone = (learner.model.weight.grad for learner in learners)
    torch.testing.assert_close(whole, alone / 2, rtol=TOLERANCE, atol=TOLERANCE)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    learners[0].step(batch._replace(total=16))
    torch.manual_seed(6)
    torch.rand(1)
    assert not torch.equal(drawn, torch.rand(1))


def test_frozen_weights_may_be_among_those_of_kept_states() -> None:
    model = Quadratic()
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    learner = GradientLearner(model, CONFIG, STEPS)
    learner.together = True
    rows = {model.weight: torch.arange(4), frozen: torch.tensor([1])}
    with patch.object(model, "touched_rows", lambda: rows):
        tensors = {name: getattr(batches()[0], name) for name in ("tokens", "lengths", "fresh")}
        made = learner.differentiate(tensors, (True, True, False))
    assert {name for name in made if name.startswith("rows.")} == {"rows.weight"}


def test_a_rate_on_the_device_is_set_in_place() -> None:
    learner = GradientLearner(Quadratic(), CONFIG, STEPS)
    rate = learner.optimizer.param_groups[0]["lr"] = torch.zeros(())
    learner.prepare()
    assert float(rate) == pytest.approx(CONFIG.lr * cosine(0))
    assert learner.optimizer.param_groups[0]["lr"] is rate


class Staged(Quadratic):
    """A model whose steps change their shapes after half of the training."""

    def advance(self, done: float) -> object:
        return done >= 0.5


def test_graphs_are_forgotten_when_shapes_change() -> None:
    learner = GradientLearner(Staged(), CONFIG, 4)
    with patch.object(learner.run, "forget", wraps=learner.run.forget) as forget:
        counts = [(learner.step(batch), forget.call_count)[1] for batch in batches()[:4]]
    assert counts == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("equal", "synchronises", "sums", "steady"),
    [(True, False, False, True), (False, False, False, False), (True, True, False, False), (True, False, True, False)],
)
def test_which_steps_a_graph_may_repeat(equal: bool, synchronises: bool, sums: bool, steady: bool) -> None:
    learner = GradientLearner(Quadratic(), CONFIG, STEPS)
    if synchronises:  # not by default
        learner.model.synchronises = True
    with (
        patch.object(distributed, "sums_within_steps", return_value=sums),
        patch.object(learner, "run", wraps=learner.run) as run,
    ):
        learner.step(batches()[0]._replace(equal_lengths=equal))
    assert run.call_args.args[-1] is steady


def test_sentences_of_any_lengths_share_a_graph_if_the_model_allows_it() -> None:
    model = Quadratic()
    model.any_lengths = True
    learner, ragged = GradientLearner(model, CONFIG, STEPS), batches()[0]._replace(equal_lengths=False)
    with patch.object(learner, "run", wraps=learner.run) as run:
        for batch in (ragged, ragged._replace(equal_lengths=True)):
            learner.step(batch)
    (_, one, first), (_, other, second) = (call.args for call in run.call_args_list)
    assert (first, second) == (True, True)
    assert one == other


def test_an_evaluation_sees_weights_that_a_kernel_has_changed() -> None:
    learner = GradientLearner(Quadratic(), CONFIG, STEPS)
    memo = Memo(learner.model)
    with torch.no_grad(), learner.evaluated():
        before = memo("weight", lambda: learner.model.weight.clone())
    learner.model.weight.data.add_(1)  # data has a version of its own
    with torch.no_grad(), learner.evaluated():
        assert torch.equal(memo("weight", lambda: learner.model.weight.clone()), before + 1)


@pytest.mark.parametrize("setting", ["", "fp32_precision = 'tf32'", "cuda.matmul.allow_tf32 = True"])
@pytest.mark.parametrize("rough", [True, False])
def test_products_are_in_tf32_within_a_step_only(rough: bool, setting: str) -> None:
    """Whichever way the program has chosen a precision: torch refuses a mixture of both."""
    script = f"""
import torch
if {setting!r}:
    exec("torch.backends." + {setting!r})
from trellis.learning.gradient import products_in_tf32
products = torch.backends.cuda.matmul
name = "fp32_precision" if hasattr(products, "fp32_precision") else "allow_tf32"
before = getattr(products, name)
with products_in_tf32({rough}):
    assert getattr(products, name) in (("tf32", True) if {rough} else (before,))
assert getattr(products, name) == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_model_without_weights_is_an_error() -> None:
    with pytest.raises(TrellisError, match="Identity has no parameters"):
        GradientLearner(nn.Identity(), CONFIG, STEPS)


@given(st.floats(0.01, 0.999), st.integers(1, 30), st.integers(0, 5))
def test_average_is_a_weighted_sum_of_all_weights(decay: float, updates: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=updates + 1)
    weight = nn.Parameter(torch.tensor(values[0]))
    average = WeightAverage([weight], decay)
    decays = [min(decay, (1 + n) / (10 + n)) for n in range(updates)]
    for n in range(updates):
        weight.data.fill_(values[n + 1])
        average.prepare(n)
        average.update()
    shares = [math.prod(decays)] + [(1 - decays[n]) * math.prod(decays[n + 1 :]) for n in range(updates)]
    assert sum(shares) == pytest.approx(1)
    with average.applied():
        assert weight.item() == pytest.approx(np.dot(shares, values), abs=TOLERANCE)
    assert weight.item() == values[-1]


def test_constant_with_warmup() -> None:
    schedule = make_schedule(TrainConfig(lr=2.0, warmup=4))
    assert [schedule.rate(step) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_is_torchs(floor: float) -> None:
    schedule = make_schedule(TrainConfig(lr=2.0, schedule="cosine", lr_floor=floor), total_steps=11)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=2.0 * floor)
    for step in range(11):
        assert schedule.rate(step) == pytest.approx(oracle.get_last_lr()[0], abs=TOLERANCE)
        optimizer.step()
        oracle.step()


@example([math.inf, 2.0, 2.0, math.inf], 2, 30)
@given(st.lists(st.floats(1, 100), max_size=30), st.integers(1, 4), st.integers(0, 30))
def test_plateau_is_torchs_and_survives_a_restart(valid: list[float], patience: int, restart: int) -> None:
    config = TrainConfig(lr=1.0, schedule="plateau", lr_factor=0.5, lr_patience=patience, lr_floor=0.01)
    schedule = make_schedule(config)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=patience - 1, threshold=0.0, min_lr=0.01, eps=0.0
    )
    for check, value in enumerate(valid):
        if check == restart:
            saved = schedule.state_json()
            schedule = make_schedule(config)
            schedule.restore(saved)
        schedule.observe(value)
        oracle.step(value)
        assert schedule.rate(check) == optimizer.param_groups[0]["lr"]


def test_schedule_mistakes_are_named() -> None:
    with pytest.raises(
        TrellisError, match=r"train\.schedule is .cosin., which is not recognised; did you mean .cosine.\?"
    ):
        make_schedule(TrainConfig(schedule="cosin"))
    with pytest.raises(TrellisError, match="needs the total number of steps"):
        make_schedule(TrainConfig(schedule="cosine"))


def test_the_shortest_cosine() -> None:
    schedule = make_schedule(TrainConfig(lr=2.0, schedule="cosine", lr_floor=0.25, warmup=1), total_steps=3)
    assert [schedule.rate(step) for step in range(4)] == pytest.approx([2.0, 2.0, 0.5, 0.5], abs=TOLERANCE)
