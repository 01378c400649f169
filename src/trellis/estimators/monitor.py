"""When training ends: a record of the log-likelihood, iteration by iteration, for each restart."""

import logging
import math
import sys
from collections import deque
from dataclasses import dataclass, field

from trellis.parts import Parts
from trellis.types import Counts

log = logging.getLogger(__name__)
WIGGLE = math.sqrt(sys.float_info.epsilon)  # a fall of the log-likelihood that rounding explains


class ConvergenceMonitor:
    """Training has converged when the gain of an iteration is below `tol`, or after `n_iter` iterations.

    For another rule, subclass it, redefine `converged`, and set an estimator's `monitor_` to an instance before `fit`.
    """

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self.history: deque[float] = deque()
        self.iter = 0

    def report(self, log_prob: float) -> None:
        """Note the log-likelihood before an iteration's update; a line on standard error where `verbose`."""
        gain = log_prob - self.history[-1] if self.history else math.nan
        if self.verbose:
            print(f"{self.iter + 1:>10d} {log_prob:>16.8f} {gain:>+16.8f}", file=sys.stderr)
        if gain < -WIGGLE:
            log.warning(
                "Model is not converging.  Current: %s is not greater than %s. Delta is %s",
                *(log_prob, self.history[-1], gain),
            )
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """Whether to stop."""
        settled = len(self.history) >= 2 and self.history[-1] - self.history[-2] < self.tol
        return self.iter == self.n_iter or settled

    def _reset(self) -> None:
        """Forget everything but the rule."""
        self.iter = 0
        self.history.clear()

    def __repr__(self) -> str:
        fields = sorted((vars(self) | {"history": list(self.history)}).items())
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"


@dataclass
class Restart:
    """One run of EM from one start: its parameters, its monitor, and how it does on held-out data."""

    parts: Parts
    monitor: ConvergenceMonitor
    valid: list[float] = field(default_factory=list)  # held-out log-likelihood after every iteration
    best: Parts | None = None  # by that
    done: bool = False

    @property
    def merit(self) -> float:
        """What restarts are compared by."""
        return max(self.valid) if self.valid else self.monitor.history[-1] if self.monitor.history else -math.inf

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
