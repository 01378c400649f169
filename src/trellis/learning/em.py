"""Baum-Welch: expectation by exact inference, maximisation by counting; over the whole text at a time, or stepwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM, Carried
from trellis.learning.base import StepResult
from trellis.types import Batch, Counts


class EMLearner:
    """Adds up the expected counts of an epoch and re-estimates the parameters at its end.

    Over sentences that is exact Baum-Welch; over the windows of a stream the belief is carried forward, but a window
    does not see what follows it."""

    def __init__(self, model: HMM, config: TrainConfig, total_steps: int = 0) -> None:
        if not model.params.counted or model.dropout.draws_anything:
            raise TrellisError(
                "EM re-estimates tables of probabilities: for neural or lowrank parameters or dropout use "
                'train.learner = "gradient".'
            )
        self.model, self.params = model.eval(), model.params
        self.pseudocount = config.pseudocount
        self.rate = 1.0
        self.steps = 0
        self.totals: Counts | None = None
        self.carried: Carried | None = None

    def step(self, batch: Batch) -> StepResult:
        tokens = int(batch.lengths.sum())
        batch = batch.to(self.model.device)
        counts, self.carried = self.model.counts(batch, self.carried)
        self.absorb(counts, tokens)
        self.steps += 1
        return StepResult(counts.log_likelihood, tokens)

    def absorb(self, counts: Counts, tokens: int) -> None:
        self.totals = counts if self.totals is None else self.totals.plus(counts)

    def end_epoch(self) -> None:
        if self.totals is not None:
            self.params.maximise(self.totals, self.pseudocount)
        self.totals = self.carried = None

    def observe(self, valid: float) -> None:
        """Nothing to adapt."""

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
        def under(prefix: str) -> dict[str, Tensor]:
            found = {name: value for name, value in tensors.items() if name.startswith(prefix)}
            return {name.removeprefix(prefix): value.to(self.model.device) for name, value in found.items()}

        try:
            self.model.load_state_dict(under("model."))
            totals, belief = under("totals."), under("belief.")
            self.totals = Counts(**totals) if totals else None
            self.carried = self.model.state_from_tensors(belief) if belief else None
            self.steps, self.rate = json["steps"], json["rate"]
        except (RuntimeError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise TrellisError(f"The checkpoint does not fit this model and its learner: {reason}.") from error


class StepwiseEMLearner(EMLearner):
    """Online EM (Cappe and Moulines): after each batch the running statistics per token move towards the batch's by
    rate (k + 2)^-power, and the parameters follow; for a text that does not fit in memory or in patience."""

    def __init__(self, model: HMM, config: TrainConfig, total_steps: int = 0) -> None:
        super().__init__(model, config, total_steps)
        self.power = config.em_power

    def absorb(self, counts: Counts, tokens: int) -> None:
        """A batch without the beginning of any sequence says nothing about starts, and leaves them as they are."""
        self.rate = (self.steps + 2.0) ** -self.power
        if self.totals is None:
            self.totals = Counts(*(value / tokens for value in counts))
        else:
            keep_start = self.rate if bool(counts.start.sum() > 0) else 0.0
            rates = (self.rate, keep_start, self.rate, self.rate)
            for total, value, rate in zip(self.totals, counts, rates, strict=True):
                total.mul_(1 - rate).add_(value, alpha=rate / tokens)
        self.params.maximise(self.totals, self.pseudocount / tokens)

    def end_epoch(self) -> None:
        """The statistics run on; only the text begins anew."""
        self.carried = None
