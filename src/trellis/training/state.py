"""The state of the training loop."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from trellis.learning.base import StepResult


@dataclass
class TrainState:
    """Counters of the training loop; checkpoints save all of them except the outcome, the history and the weights."""

    step: int = 0
    epoch: int = 0  # completed epochs
    batch: int = 0  # steps in the current epoch
    tokens: int = 0
    seconds: float = 0.0  # total over all sessions
    best: float | None = None  # lowest validation perplexity or other measure
    best_step: int = 0
    bad_checks: int = 0  # evaluations since the best
    lowest_loss: float = math.inf  # lowest train loss of a line of metrics so far, in nats per token
    lines: int = 0  # lines in metrics.jsonl
    window_start: int = 0  # the step of the last line of metrics; the sums below begin after it
    window_log_likelihood: Tensor | float = 0.0  # stays on the device
    window_tokens: int = 0
    window_seconds: float = 0.0
    outcome: str = ""  # why training ended: epochs | steps | seconds | patience | interrupted
    history: list[dict[str, Any]] = field(default_factory=list)  # the lines of metrics.jsonl
    weights: dict[str, Tensor] | None = None  # the best weights, if there is no folder to keep them

    @property
    def interrupted(self) -> bool:
        return self.outcome == "interrupted"

    def summary(self) -> dict[str, Any]:
        """How long training took, and how it ended."""
        return {name: getattr(self, name) for name in ("step", "epoch", "tokens", "seconds", "outcome")}

    def count(self, result: StepResult) -> None:
        """Record one step without synchronising with the device."""
        self.step += 1
        self.batch += 1
        self.tokens += result.tokens
        self.window_tokens += result.tokens
        log_likelihood = torch.as_tensor(result.log_likelihood, dtype=torch.float64)
        self.window_log_likelihood = self.window_log_likelihood + log_likelihood

    def end_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0

    def window_loss(self) -> float:
        """The loss in nats per token since the last line of metrics; nan if the loss of any step was nan."""
        return -float(self.window_log_likelihood) / max(self.window_tokens, 1)

    def begin_window(self) -> None:
        """Begin to add up losses, tokens and seconds for the next line of metrics."""
        self.lines += 1
        self.window_start, self.window_log_likelihood = self.step, 0.0
        self.window_tokens, self.window_seconds = 0, 0.0

    def observe(self, valid: float) -> bool:
        """Record a validation measure; returns whether it is the best so far."""
        better = self.best is None or valid < self.best
        if better:
            self.best, self.best_step = valid, self.step
        self.bad_checks = 0 if better else self.bad_checks + 1
        return better

    def to_json(self) -> dict[str, Any]:
        saved = {name: getattr(self, name) for name in SAVED}
        return saved | {"window_log_likelihood": float(self.window_log_likelihood)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        for name in SAVED:
            kinds = float | int | None if name == "best" else type(getattr(cls, name)) | int
            given, counts = values[name], isinstance(getattr(cls, name), int)
            if not isinstance(given, kinds) or isinstance(given, bool) or (counts and given < 0):
                raise ValueError(f"its {name} is {given!r}")
        return cls(**{name: values[name] for name in SAVED})


SAVED = [one.name for one in fields(TrainState) if one.name not in ("outcome", "history", "weights")]
