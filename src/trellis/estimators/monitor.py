"""Convergence monitoring: the log-likelihood per iteration, for each restart."""

import logging
import math
import sys
from collections import deque
from dataclasses import dataclass, field

from trellis.parts import Parts
from trellis.types import Counts

log = logging.getLogger(__name__)
WIGGLE = math.sqrt(sys.float_info.epsilon)  # smaller decreases of the log-likelihood are attributed to rounding


class ConvergenceMonitor:
    """Records the log-likelihood of each iteration. Training ends when an iteration improves it by less
    than `tol`, or after `n_iter` iterations.

    For another rule, write a subclass that overrides `converged`, and assign an instance of it to `monitor_` of an
    estimator before `fit`.

    Parameters
    ----------
    tol
        The smallest gain in log-likelihood with which training continues.
    n_iter
        The maximum number of iterations.
    verbose
        Print the log-likelihood of each iteration to standard error.
    """

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self.history: deque[float] = deque()
        self.iter = 0

    def report(self, log_prob: float) -> None:
        """Record the log-likelihood at the start of an iteration, before the parameters are updated. If `verbose`,
        print it to standard error."""
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
        """Whether training should stop."""
        settled = len(self.history) >= 2 and self.history[-1] - self.history[-2] < self.tol
        return self.iter == self.n_iter or settled

    def _reset(self) -> None:
        """Clear the history."""
        self.iter = 0
        self.history.clear()

    def __repr__(self) -> str:
        fields = sorted((vars(self) | {"history": list(self.history)}).items())
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"


@dataclass
class Restart:
    """One EM run from one initialisation: its parameters, monitor and held-out scores."""

    parts: Parts
    monitor: ConvergenceMonitor
    valid: list[float] = field(default_factory=list)  # held-out log-likelihood after every iteration
    best: Parts | None = None  # the parameters with the best held-out score
    done: bool = False

    @property
    def merit(self) -> float:
        """The score by which restarts are compared."""
        return max(self.valid) if self.valid else self.monitor.history[-1] if self.monitor.history else -math.inf

    def update(self, parts: Parts, counts: Counts) -> None:
        """Record the result of an iteration."""
        self.parts = parts
        self.monitor.report(float(counts.log_likelihood))
        self.done = self.monitor.converged

    def judge(self, score: float, patience: int) -> None:
        """Record a held-out score: keep the best parameters, and stop after `patience` scores without improvement."""
        if not self.valid or score > max(self.valid):
            self.best = self.parts
        self.valid.append(score)
        self.done |= len(self.valid) - self.valid.index(max(self.valid)) > patience
