"""One run of EM from one start: its parameters, its monitor, and how it does on held-out data."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trellis.estimators.monitor import ConvergenceMonitor
from trellis.parts import Parts
from trellis.types import Counts


@dataclass
class Restart:
    """Where it stands."""

    parts: Parts
    monitor: ConvergenceMonitor
    valid: list[float] = field(default_factory=list)  # held-out log-likelihood after every iteration
    best: Parts | None = None  # by that
    done: bool = False

    @property
    def merit(self) -> float:
        """What restarts are compared by."""
        return max(self.valid) if self.valid else self.monitor.history[-1] if self.monitor.history else -torch.inf

    def update(self, parts: Parts, counts: Counts) -> None:
        """An iteration is over."""
        self.parts = parts
        self.monitor.report(float(counts.log_likelihood))
        self.done = self.monitor.converged

    def judge(self, score: float, patience: int) -> None:
        """Note a held-out score: the best parameters are kept, and too long without better ones is the end."""
        if not self.valid or score > max(self.valid):
            self.best = self.parts
        self.valid.append(score)
        self.done |= len(self.valid) - self.valid.index(max(self.valid)) > patience
