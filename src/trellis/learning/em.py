"""Baum-Welch (EM), batch or stepwise, with exact inference in the E-step and a closed-form M-step.

Language models and estimators share one E-step and one M-step. Conventions:
- a pseudocount p is a Dirichlet prior with parameters p + 1; starts and transitions of probability zero stay zero
  (`trellis.dirichlet`);
- in stepwise EM, the first batch sets the running statistics, and step k = 1, 2, ... moves them towards those of its
  batch with step size (k + 2)^-power.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.inference import discrete, weighted
from trellis.inference.carry import Carry, from_start
from trellis.learning.base import Maximisable, StepResult, under, wrong_checkpoint
from trellis.parts import Parts, Prior
from trellis.transitions import Stacked
from trellis.types import Batch, Belief, Counts, Potentials

SMALLEST = 4  # every batch counts as at least 1 / SMALLEST of the tokens of the first batch


def expect(parts: Parts, observations: Any, lengths: Tensor, carry: Carry | None = None) -> tuple[Counts, Carry]:
    """The E-step: expected starts, transitions and emission statistics of a batch, and the state for the next batch.

    Sequences that do not begin in this batch continue from `carry`: a transition to their first token is counted,
    instead of a start."""
    start, transition, emission = parts
    potentials = emission.potentials(observations).checked(lengths)
    if carry is None:
        prior = from_start(start, len(lengths), potentials.first_ids())
        counts, belief = discrete.counts(prior, transition, potentials, lengths)
        after = Carry.first(belief, lengths)
    else:
        prior = carry.prior(start, transition, potentials.first_ids())
        fresh = None if carry.all_fresh else carry.fresh
        counts, belief = discrete.counts(prior, transition, potentials, lengths, carry.belief, fresh)
        after = carry.after(belief, lengths, parts.num_states)
    return counts._replace(emission=emission.statistics(observations, counts.emission)), after


def expect_whole(
    parts: Parts, observations: Any, lengths: Tensor, states: Tensor | None = None, weights: Tensor | None = None
) -> Counts:
    """The E-step of sequences that all begin in this batch, with known states [B, T] (-1: unknown) and weights [B]."""
    start, transition, emission = parts
    potentials = emission.potentials(observations)
    prior = from_start(start, len(lengths), potentials.first_ids())
    if states is None and weights is None:
        counts, _ = discrete.counts(prior, transition, potentials, lengths)
    else:
        counts = weighted.counts(prior, transition, potentials, lengths, states, weights)
    return counts._replace(emission=emission.statistics(observations, counts.emission))


def expect_together(models: Sequence[Parts], observations: Any, lengths: Tensor) -> list[Counts]:
    """The E-step of several models of the same shape, on the same sequences, in one pass."""
    found = [model.emission.potentials(observations) for model in models]
    copies, batch, states = len(models), len(lengths), models[0].num_states
    tables = torch.stack([potentials.table for potentials in found])  # [R, N, K]
    shift = torch.arange(copies, device=tables.device)[:, None, None] * tables.shape[1]
    rows = torch.where(found[0].rows < 0, -1, found[0].rows + shift).flatten(0, 1)
    prior = torch.stack([model.start for model in models]).repeat_interleave(batch, 0)
    transition = Stacked(torch.stack([model.transition.dense() for model in models]))
    potentials = Potentials(tables.flatten(0, 1), rows)
    counts, _ = discrete.counts(Belief(prior), transition, potentials, lengths.repeat(copies), per_sequence=True)
    log_likelihoods = counts.log_likelihood.view(copies, batch).sum(1)
    starts = counts.start.view(copies, batch, states).sum(1)
    visits = counts.emission.view(tables.shape)
    statistics = [model.emission.statistics(observations, one) for model, one in zip(models, visits, strict=True)]
    return [Counts(*one) for one in zip(log_likelihoods, starts, counts.transition, statistics, strict=True)]


class Running(NamedTuple):
    """The running mean of the expected statistics per token, for stepwise EM (Cappe and Moulines 2009)."""

    mean: Counts
    steps: int = 1

    @classmethod
    def absorb(cls, before: Running | None, counts: Counts, tokens: float, power: float) -> Running:
        """Move the running mean towards the mean of a batch. If no sequence begins in the batch, the start statistics
        are unchanged."""
        if before is None:
            return cls(Counts(*(value / tokens for value in counts)))
        rate = step_rate(before.steps, power)
        start_rate = rate if bool(counts.start.sum() > 0) else 0.0
        fields = zip(before.mean, counts, (rate, start_rate, rate, rate), strict=True)
        mean = Counts(*(mean.mul(1 - r).add_(value, alpha=r / tokens) for mean, value, r in fields))
        return cls(mean, before.steps + 1)

    def to(self, device: str | torch.device) -> Running:
        return Running(Counts(*(value.to(device) for value in self.mean)), self.steps)

    def counts(self, tokens: float) -> Counts:
        """The mean statistics per token, times a number of tokens."""
        return Counts(*(value * tokens for value in self.mean))


def step_rate(step: int, power: float) -> float:
    """The step size after `step` steps, at least one. (The first step sets the statistics.)"""
    return (step + 2.0) ** -power


class EMLearner:
    """Batch EM: accumulates expected counts over an epoch and re-estimates the parameters at its end.

    On sentences this is exact Baum-Welch. On a stream, the forward pass continues from window to window, but the
    backward pass starts anew at the end of each window. If training runs in several processes, they divide the rows of
    each batch among themselves and add up their counts."""

    runs_together: ClassVar[bool] = True  # in several processes

    def __init__(self, model: Any, config: TrainConfig, total_steps: int = 0) -> None:
        if not isinstance(model.params, Maximisable) or model.dropout.draws_anything:
            raise TrellisError(
                "EM requires table parameters without dropout; for neural or lowrank parameters, or dropout, use "
                'train.learner = "gradient".'
            )
        self.model, self.params = model.eval(), model.params
        self.prior = Prior.same(config.pseudocount)
        self.rate = 1.0
        self.steps, self.idle = 0, False
        self.totals: Counts | None = None
        self.carried: Any = None

    def step(self, batch: Batch) -> StepResult:
        tokens = batch.num_tokens
        counts, self.carried = self.model.counts(batch.to(self.model.device), self.carried)
        counts = counts.over_processes(batch.idle)
        self.absorb(counts, tokens)
        self.steps, self.idle = self.steps + 1, batch.idle
        return StepResult(counts.log_likelihood, tokens)

    def absorb(self, counts: Counts, tokens: int) -> None:
        self.totals = counts if self.totals is None else self.totals.plus(counts)

    def end_epoch(self) -> None:
        if self.totals is not None:
            self.params.maximise(self.totals, self.prior)
        self.totals = self.carried = None

    def observe(self, valid: float) -> None:
        """Do nothing: EM does not adapt to the validation perplexity."""

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        yield

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.totals is not None:
            tensors |= {f"totals.{name}": value for name, value in self.totals._asdict().items()}
        if self.carried is not None:
            tensors |= {f"belief.{k}": v for k, v in self.model.state_to_tensors(self.carried).items()}
        return tensors

    def state_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "rate": self.rate}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        here = {name: value.to(self.model.device) for name, value in tensors.items()}
        try:
            self.model.load_state_dict(under("model.", here))
            totals, belief = under("totals.", here), under("belief.", here)
            self.totals = Counts(**totals) if totals else None
            self.carried = self.model.state_from_tensors(belief) if belief else None
            self.steps, self.rate = operator.index(json["steps"]), float(json["rate"])
        except (RuntimeError, KeyError, TypeError) as error:
            raise wrong_checkpoint(error) from error


class StepwiseEMLearner(EMLearner):
    """Online EM for large texts. After each batch, the parameters are re-estimated from the running statistics
    (`Running`) and the pseudocounts.

    The pseudocounts would outweigh the statistics of a very small batch, such as the last of an epoch. Each batch
    therefore counts as at least a quarter of the tokens of the first."""

    def __init__(self, model: Any, config: TrainConfig, total_steps: int = 0) -> None:
        super().__init__(model, config, total_steps)
        self.power = config.em_power
        self.usual = 0  # tokens of the first batch

    def absorb(self, counts: Counts, tokens: int) -> None:
        self.rate = step_rate(self.steps, self.power)
        before = None if self.totals is None else Running(self.totals, self.steps)
        running = Running.absorb(before, counts, tokens, self.power)
        self.totals, self.usual = running.mean, self.usual or tokens
        self.params.maximise(running.counts(max(tokens, self.usual // SMALLEST)), self.prior)

    def end_epoch(self) -> None:
        """Reset the state distribution; the running statistics are kept."""
        self.carried = None

    def state_json(self) -> dict[str, Any]:
        return super().state_json() | {"usual": self.usual}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        super().restore(tensors, json)
        try:
            self.usual = operator.index(json["usual"])
        except (KeyError, TypeError) as error:
            raise wrong_checkpoint(error) from error
