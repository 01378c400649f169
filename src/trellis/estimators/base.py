"""The training of HMM estimators with any emission."""

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
from trellis.estimators import hooks, inference
from trellis.estimators.alignment import AlignedHMM
from trellis.estimators.arguments import documented
from trellis.estimators.blocks import Block
from trellis.estimators.inputs import Observations, lengths_of
from trellis.estimators.labels import start_from_labels
from trellis.estimators.monitor import ConvergenceMonitor, Restart, log
from trellis.estimators.splits import hold_out
from trellis.estimators.streaming import StreamingHMM
from trellis.estimators.supervision import labelled, weighted
from trellis.learning.em import Running, expect_together
from trellis.parts import Parts, Prior
from trellis.types import Counts


@documented()
@dataclass(repr=False, eq=False)
class BaseHMM(AlignedHMM, StreamingHMM):
    """A hidden Markov model trained by expectation-maximisation; subclasses add the emission."""

    _: KW_ONLY
    startprob_prior: Any = 1.0
    transmat_prior: Any = 1.0
    n_iter: int = 10
    tol: float = 1e-2
    verbose: bool = False
    n_init: int = 1
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    learning_decay: float = 0.6

    _running = None  # type: Running | None  # running statistics of partial_fit
    _origin = None  # type: Any  # the origin of these statistics, if they have one
    _seen = 0.0  # observations seen by partial_fit, weighted
    _own_monitor = _monitor = None  # type: ConvergenceMonitor | None  # set by the user; of the last fit

    def _emission_prior(self) -> Any:
        """The prior of the emission, in the form that the emission's M-step expects; None if the emission is not
        trained."""

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the emission attributes named by `letters`."""

    def fit(self, X: Any, y: Any = None, lengths: Any = None, *, sample_weight: Any = None, states: Any = None) -> Self:
        """Estimate the parameters by EM.

        Parameters that are not set, and those named in `init_params`, are initialised first. `sample_weight` has a
        weight for each sequence. `states` has the state of each observation: -1, NaN or None if it is unknown. `y` is
        ignored, unless it holds the lengths, which hmmlearn passes as the second argument."""
        lengths = lengths_of(X, y, lengths)
        self._check_settings()
        self._forget()
        if hooks.overrides(self, *hooks.TRAINING):
            return hooks.fit(self, X, lengths, sample_weight, states)
        observed = self._annotated(X, lengths, sample_weight, states, fitting=True)
        self.n_features_in_ = observed.features
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
        if train.states is not None:
            start_from_labels(self, restarts, letters, train, prior)
        for _ in range(self.n_iter):
            active = [restart for restart in restarts if not restart.done]
            if not active:
                break
            models = [restart.parts for restart in active]
            counts = self._penalised(models, self._expect(models, blocks))  # E-step
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
        if self.early_stopping:
            self.validation_scores_ = best.valid
        return self

    def partial_fit(
        self, X: Any, y: Any = None, lengths: Any = None, *, sample_weight: Any = None, states: Any = None
    ) -> Self:
        """Update the parameters by one step of stepwise EM on a mini-batch. Running statistics are kept between calls.

        Parameters that are not set are initialised on the first call. The prior counts once in all, not
        once per call."""
        self._check_settings()
        if hooks.overrides(self, *hooks.TRAINING):
            hooks.refuse(self, "partial_fit does")
        first = not all(hasattr(self, name) for name in self.letters.values())
        if not first:
            self._check()
        observed = self._annotated(X, lengths_of(X, y, lengths), sample_weight, states, fitting=first)
        if first:
            self.n_features_in_ = observed.features
            self._start(self._letters_to_draw(), observed, self.random_state)
        if self._running is None:
            self._hold_origin()
        parts, device = self._training_parts(), choose_device(self.device)
        (counts,) = self._expect([parts], self._blocks(observed))
        before = None if self._running is None else self._running.to(device)
        tokens = int(observed.lengths.sum()) if observed.weights is None else float(observed.weights @ observed.lengths)
        running = Running.absorb(before, counts, tokens, self.learning_decay)
        self._running, self._seen = running.to("cpu"), self._seen + tokens
        (parts,) = self._maximise([parts], [running.counts(self._seen)], self._prior())
        self._adopt(parts)
        return self

    def _expect(self, models: Sequence[Parts], blocks: Sequence[Block]) -> list[Counts]:
        """The E-step: return the expected counts of every restart. On a GPU, all restarts run as one batch, unless
        there are weights or known states; on a CPU, they run one after the other."""
        totals: list[Counts] = []
        for block in blocks:
            plain = block.weights is None and block.states is None
            together = len(models) > 1 and block.lengths.is_cuda and plain
            found = expect_together(models, block.observations, block.lengths) if together else []
            if not found or any(bool(counts.log_likelihood == -torch.inf) for counts in found):
                found = [inference.expect(parts, block) for parts in models]
            totals = [total.plus(new) for total, new in zip(totals, found, strict=True)] if totals else found
        return totals

    def _maximise(self, models: Sequence[Parts], counts: Sequence[Counts], prior: Prior) -> list[Parts]:
        """The M-step: return the new parameters of every restart."""
        if prior.transition is not None and any(has_empty_row(one.transition) for one in counts):
            log.warning("Some state has no outgoing transitions in the data; its row of transmat_ is unchanged.")
        return [parts.maximised(found, prior) for parts, found in zip(models, counts, strict=True)]

    def _prior(self) -> Prior:
        """The priors of the M-step (None for parameters that are not trained), and the constraints."""
        states = self.n_components
        start = self._pseudocount("startprob_prior", (states,)) if "s" in self.params else None
        trained = "t" in self.params
        transition = self._pseudocount("transmat_prior", (states, states)) + self._stickiness() if trained else None
        return Prior(start, transition, self._emission_prior(), self._constraints())

    def _pseudocount(self, name: str, shape: tuple[int, ...]) -> float | Tensor:
        """The argument `name`, a Dirichlet prior, as a pseudocount."""
        prior = getattr(self, name)
        return prior - 1.0 if isinstance(prior, float | int) else self._prior_tensor(name, shape) - 1

    def _prior_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The argument `name`, a prior, as a tensor; raises if it cannot be broadcast to the shape."""
        try:
            value = np.asarray(getattr(self, name), np.float64)
            if value.ndim:
                np.broadcast_to(value, shape)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a number or an array of shape {shape}.") from error
        return self._tensor(value)

    def _annotated(self, X: Any, lengths: Any, sample_weight: Any, states: Any, fitting: bool) -> Observations:
        """The observations with the weights of sequences and the known states."""
        observed = self._observe(X, lengths, fitting)
        return weighted(labelled(observed, states, self.n_components), sample_weight)

    def _forget(self) -> None:
        self._running, self._origin, self._seen = None, None, 0.0

    def _hold_origin(self) -> None:
        """Fix the origin of the running statistics, if they have one."""

    def _seeds(self, random: np.random.RandomState) -> list[Any]:
        """One seed per restart."""
        return [self.random_state, *(random.randint(2**31 - 1, size=self.n_init - 1) if self.n_init > 1 else ())]

    def _start(self, letters: str, observed: Observations, seed: Any) -> Parts:
        """The initial parameters of a restart."""
        self._initialise(letters, observed, seed)
        self._check()
        return self._training_parts()

    def _initialise(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the attributes named by `letters`, under the constraints."""
        frozen = self._frozen_values()
        if letters:
            self._draw(letters, observed, seed)
        self._constrain(letters, frozen)

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
        self._draw_emission(letters, observed, self._emission_seed(seed, random))

    def _emission_seed(self, seed: Any, random: np.random.RandomState) -> Any:
        """The generator from which the initial emission is drawn. If the seed is an integer, `random` is reset to it,
        which is faster than creating a new generator."""
        if isinstance(seed, int | np.integer):
            random.seed(seed)
        return random

    def _letters_to_draw(self) -> str:
        """The letters of the parameters to initialise: those named in `init_params` or not yet set."""
        frozen = self._frozen_values()
        letters = self.letters.items()
        return "".join(letter for letter, name in letters if self._needs_init(letter, name, name not in frozen))

    def _warn_about_size(self, observed: Observations) -> None:
        free = self._get_n_fit_scalars_per_param()
        wanted, given = sum(free.get(letter, 0) for letter in self.params), observed.values.size
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


def has_empty_row(counts: Tensor) -> bool:
    """Whether some row of the counts [K, n] is all zero, computed in as few operations as possible."""
    return not np.minimum.reduce(np.maximum.reduce(counts.cpu().numpy(), -1))
