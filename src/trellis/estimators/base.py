"""How an HMM estimator is trained: everything but the M-step of its emission."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.devices import choose_device
from trellis.errors import InputError
from trellis.estimators.blocks import Block
from trellis.estimators.em import Parameters, Restart, Stream, baum_welch, expect, reestimate
from trellis.estimators.fitted import FittedHMM
from trellis.estimators.inputs import Observations
from trellis.estimators.monitor import ConvergenceMonitor, log
from trellis.estimators.splits import hold_out
from trellis.types import Counts


@dataclass(repr=False, eq=False)
class BaseHMM(FittedHMM):
    """A hidden Markov model trained by expectation-maximisation; an emission is all that a subclass adds."""

    _: KW_ONLY
    startprob_prior: Any = 1.0  # of a Dirichlet distribution; 1: none
    transmat_prior: Any = 1.0
    n_iter: int = 10  # at most
    tol: float = 1e-2  # a smaller gain in log-likelihood ends the training
    verbose: bool = False
    n_init: int = 1  # restarts, of which the best is kept
    early_stopping: bool = False  # judge iterations by held-out sequences
    validation_fraction: float = 0.1  # held out
    n_iter_no_change: int = 5  # iterations without a better held-out likelihood before stopping
    learning_decay: float = 0.6  # partial_fit: step k has the rate (k + 1) ** -learning_decay

    _stream = Stream()

    @abstractmethod
    def statistics(self, params: Parameters, block: Block, visits: Tensor) -> Tensor:
        """What the M-step needs of expected visits [N, K]; they add and scale."""

    @abstractmethod
    def maximise_emission(self, params: Parameters, statistics: Tensor) -> Parameters:
        """The M-step of the emission's parameters."""

    @abstractmethod
    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the emission's attributes that `letters` name."""

    def fit(self, X: Any, lengths: Any = None) -> Self:
        """Estimate the parameters; those in `init_params`, and those not set yet, are initialised first."""
        self._check_settings()
        observed = self._read(X, lengths, fitting=True)
        random = check_random_state(self.random_state)
        seeds = [self.random_state, *(random.randint(2**31 - 1, size=self.n_init - 1) if self.n_init > 1 else ())]
        train, valid = observed, None
        if self.early_stopping:
            train, valid = hold_out(observed, self.validation_fraction, random)
        letters = self._letters_to_draw()
        restarts = [
            Restart(self._start(letters, train, seed), monitor)
            for seed, monitor in zip(seeds, self._monitors(), strict=True)
        ]
        self._warn_about_size(train)
        held_out = [] if valid is None else self._blocks(valid)
        best = baum_welch(
            self, restarts, self._blocks(train, self.n_init), held_out, self.n_iter, self.n_iter_no_change
        )
        self._adopt(best.params)
        self._keep_monitor(best.monitor)
        self._stream = Stream()
        if self.early_stopping:
            self.validation_scores_ = best.valid
        return self

    def partial_fit(self, X: Any, lengths: Any = None) -> Self:
        """One step of stepwise EM on some of the data: the expected statistics run on from call to call.

        Parameters not set yet are initialised at the first call. A prior weighs against all observations so far."""
        self._check_settings()
        first = not all(hasattr(self, name) for name in self.letters.values())
        if not first:
            self._check()
        observed = self._read(X, lengths, fitting=first)
        if first:
            self._start(self._letters_to_draw(), observed, self.random_state)
        (counts,) = expect(self, [self._parameters()], self._blocks(observed))
        self._stream = self._stream.absorb(counts, len(observed.values), self.learning_decay)
        (params,) = self.maximise([self._parameters()], [self._stream.counts(choose_device(self.device))])
        self._adopt(params)
        return self

    def maximise(self, params: list[Parameters], counts: list[Counts]) -> list[Parameters]:
        """The M-step of every restart."""
        return [
            old | self._maximise_chain(old, found) | self.maximise_emission(old, found.emission)
            for old, found in zip(params, counts, strict=True)
        ]

    def _maximise_chain(self, old: Parameters, counts: Counts) -> Parameters:
        """The M-step of start and transitions."""
        new: Parameters = {}
        if "s" in self.params:
            new["startprob_"] = reestimate(old["startprob_"], counts.start, self._tensor(self.startprob_prior))
        if "t" in self.params:
            new["transmat_"] = reestimate(old["transmat_"], counts.transition, self._tensor(self.transmat_prior))
            if bool((counts.transition.sum(-1) == 0).any()):
                log.warning("No transition from some state was ever observed; its row of transmat_ stays as it was.")
        return new

    def _start(self, letters: str, observed: Observations, seed: Any) -> Parameters:
        """Where a restart begins."""
        self._draw(letters, observed, seed)
        self._check()
        return self._parameters()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.n_init < 1:
            raise InputError(f"n_init is {self.n_init}: training needs at least one start.")

    def _draw(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the attributes that `letters` name, from the same random numbers as hmmlearn."""
        random, even = check_random_state(seed), np.full(self.n_components, 1.0 / self.n_components)
        if "s" in letters:
            self.startprob_ = random.dirichlet(even)
        if "t" in letters:
            self.transmat_ = random.dirichlet(even, size=self.n_components)
        self._draw_emission(letters, observed, seed)

    def _letters_to_draw(self) -> str:
        """The parameters that `init_params` names or that are not set."""
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
        """The record of the last training; set one of your own before `fit` to stop by another rule."""
        found = getattr(self, "_own_monitor", None) or getattr(self, "_monitor", None)
        return found or ConvergenceMonitor(self.tol, self.n_iter, self.verbose)

    @monitor_.setter
    def monitor_(self, monitor: ConvergenceMonitor) -> None:
        self._own_monitor = monitor

    def _monitors(self) -> list[ConvergenceMonitor]:
        """One for each restart, without history."""
        first = getattr(self, "_own_monitor", None) or ConvergenceMonitor(self.tol, self.n_iter, self.verbose)
        first._reset()
        return [first, *(deepcopy(first) for _ in range(self.n_init - 1))]

    def _keep_monitor(self, monitor: ConvergenceMonitor) -> None:
        setattr(self, "_own_monitor" if hasattr(self, "_own_monitor") else "_monitor", monitor)
