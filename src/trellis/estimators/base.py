"""The training of HMM estimators with any emission."""

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.devices import choose_device
from trellis.errors import InputError
from trellis.estimators.blocks import Block
from trellis.estimators.fitted import FittedHMM
from trellis.estimators.inputs import Observations
from trellis.estimators.monitor import ConvergenceMonitor, Restart, log
from trellis.estimators.splits import hold_out
from trellis.learning.em import Running, expect_together, expect_whole
from trellis.parts import Parts, Prior
from trellis.types import Counts


@dataclass(repr=False, eq=False)
class BaseHMM(FittedHMM):
    """A hidden Markov model trained by expectation-maximisation; subclasses add the emission."""

    _: KW_ONLY
    startprob_prior: Any = 1.0  # Dirichlet parameter; 1: no prior
    transmat_prior: Any = 1.0
    n_iter: int = 10  # maximum number of iterations
    tol: float = 1e-2  # stop when the gain in log-likelihood is smaller
    verbose: bool = False
    n_init: int = 1  # random restarts; the best is kept
    early_stopping: bool = False  # stop when the log-likelihood of held-out sequences no longer improves
    validation_fraction: float = 0.1  # fraction held out
    n_iter_no_change: int = 5  # iterations without a better held-out likelihood before stopping
    learning_decay: float = 0.6  # partial_fit: call k = 1, 2, ... after the first has step size (k + 2) ** -decay

    _running = None  # type: Running | None  # running statistics of partial_fit
    _seen = 0  # observations seen by partial_fit
    _own_monitor = _monitor = None  # type: ConvergenceMonitor | None  # set by the user; of the last fit

    @abstractmethod
    def _emission_prior(self) -> Any:
        """The emission prior, as its M-step expects it; None if the emission is not trained."""

    @abstractmethod
    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the emission attributes named by `letters`."""

    def fit(self, X: Any, lengths: Any = None) -> Self:
        """Estimate the parameters by EM. Parameters that are not set, or that `init_params` names, are initialised
        first."""
        self._check_settings()
        observed = self._read(X, lengths, fitting=True)
        seeds, train, valid = [self.random_state], observed, None
        if self.n_init > 1 or self.early_stopping:
            random = check_random_state(self.random_state)
            seeds = self._seeds(random)
            if self.early_stopping:
                train, valid = hold_out(observed, self.validation_fraction, random)
        letters, monitors = self._letters_to_draw(), self._monitors()
        restarts = [Restart(self._start(letters, train, s), m) for s, m in zip(seeds, monitors, strict=True)]
        self._warn_about_size(train)
        blocks, held_out = self._blocks(train, self.n_init), [] if valid is None else self._blocks(valid)
        prior = self._prior()
        for _ in range(self.n_iter):
            active = [restart for restart in restarts if not restart.done]
            if not active:
                break
            models = [restart.parts for restart in active]
            counts = self._expect(models, blocks)  # E-step
            models = self._maximise(models, counts, prior)  # M-step
            for restart, parts, found in zip(active, models, counts, strict=True):
                restart.update(parts, found)  # converged?
                if held_out:
                    restart.judge(self._log_likelihood(parts, held_out), self.n_iter_no_change)
        best = max(restarts, key=lambda restart: restart.merit)
        if best.merit == -np.inf and self.n_iter:
            log.warning("The data have probability zero under the parameters; check for zeros in them.")
        self._adopt(best.best or best.parts)
        setattr(self, "_own_monitor" if self._own_monitor else "_monitor", best.monitor)
        self._running, self._seen = None, 0
        if self.early_stopping:
            self.validation_scores_ = best.valid
        return self

    def partial_fit(self, X: Any, lengths: Any = None) -> Self:
        """One step of stepwise EM on a mini-batch. Running statistics are kept between calls.

        Parameters that are not set are initialised on the first call. The prior counts once, not once per call."""
        self._check_settings()
        first = not all(hasattr(self, name) for name in self.letters.values())
        if not first:
            self._check()
        observed = self._read(X, lengths, fitting=first)
        if first:
            self._start(self._letters_to_draw(), observed, self.random_state)
        parts, device = self._parts(), choose_device(self.device)
        (counts,) = self._expect([parts], self._blocks(observed))
        before = None if self._running is None else self._running.to(device)
        running = Running.absorb(before, counts, len(observed.values), self.learning_decay)
        self._running, self._seen = running.to("cpu"), self._seen + len(observed.values)
        (parts,) = self._maximise([parts], [running.counts(self._seen)], self._prior())
        self._adopt(parts)
        return self

    def _expect(self, models: Sequence[Parts], blocks: Sequence[Block]) -> list[Counts]:
        """The E-step of every restart: in one batch on a GPU, one after the other in compiled code."""
        totals: list[Counts] = []
        for block in blocks:
            together = len(models) > 1 and block.lengths.is_cuda
            found = expect_together(models, block.observations, block.lengths) if together else []
            if not found or any(bool(counts.log_likelihood == -torch.inf) for counts in found):
                found = [expect_whole(parts, block.observations, block.lengths) for parts in models]
            totals = [total.plus(new) for total, new in zip(totals, found, strict=True)] if totals else found
        return totals

    def _maximise(self, models: Sequence[Parts], counts: Sequence[Counts], prior: Prior) -> list[Parts]:
        """The M-step of every restart."""
        if prior.transition is not None and not all(one.transition.sum(-1).all() for one in counts):
            log.warning("Some state has no outgoing transitions in the data; its row of transmat_ is unchanged.")
        return [parts.maximised(found, prior) for parts, found in zip(models, counts, strict=True)]

    def _prior(self) -> Prior:
        """Dirichlet priors as pseudocounts; None for parameters that are not trained."""
        start = self._pseudocount(self.startprob_prior) if "s" in self.params else None
        transition = self._pseudocount(self.transmat_prior) if "t" in self.params else None
        return Prior(start, transition, self._emission_prior())

    def _pseudocount(self, prior: Any) -> float | Tensor:
        """A Dirichlet prior as a pseudocount."""
        return prior - 1.0 if isinstance(prior, float | int) else self._tensor(prior) - 1

    def _seeds(self, random: np.random.RandomState) -> list[Any]:
        """One seed per restart."""
        return [self.random_state, *(random.randint(2**31 - 1, size=self.n_init - 1) if self.n_init > 1 else ())]

    def _start(self, letters: str, observed: Observations, seed: Any) -> Parts:
        """The initial parameters of a restart."""
        self._draw(letters, observed, seed)
        self._check()
        return self._parts()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.n_init < 1:
            raise InputError(f"n_init is {self.n_init}: it must be at least 1.")

    def _draw(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the attributes named by `letters`, with the same random numbers as hmmlearn."""
        random, even = check_random_state(seed), np.full(self.n_components, 1.0 / self.n_components)
        if "s" in letters:
            self.startprob_ = random.dirichlet(even)
        if "t" in letters:
            self.transmat_ = random.dirichlet(even, size=self.n_components)
        self._draw_emission(letters, observed, seed)

    def _letters_to_draw(self) -> str:
        """The parameters named in `init_params` or not yet set."""
        for letter in self.init_params:
            if hasattr(self, self.letters[letter]):
                log.warning(
                    "Even though the %r attribute is set, it will be overwritten during initialization because "
                    "'init_params' contains %r",
                    *(self.letters[letter], letter),
                )
        return "".join(c for c, name in self.letters.items() if c in self.init_params or not hasattr(self, name))

    def _warn_about_size(self, observed: Observations) -> None:
        free = self.free_parameters()
        wanted, given = sum(free[letter] for letter in self.params), observed.values.size
        if given < wanted:
            log.warning("Fitting %d free parameters to only %d data points gives a degenerate solution.", wanted, given)

    @property
    def monitor_(self) -> ConvergenceMonitor:
        """The convergence monitor of the last fit. To change the stopping rule, assign a monitor before `fit`."""
        return self._own_monitor or self._monitor or ConvergenceMonitor(self.tol, self.n_iter, self.verbose)

    @monitor_.setter
    def monitor_(self, monitor: ConvergenceMonitor) -> None:
        self._own_monitor = monitor

    def _monitors(self) -> list[ConvergenceMonitor]:
        """One monitor per restart, without history."""
        first = self._own_monitor or ConvergenceMonitor(self.tol, self.n_iter, self.verbose)
        first._reset()
        return [first, *(deepcopy(first) for _ in range(self.n_init - 1))]
