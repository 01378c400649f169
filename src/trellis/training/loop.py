"""The training loop: steps, evaluations, checkpoints and graceful shutdown."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from trellis import distributed
from trellis.config import TrainConfig
from trellis.corpus import Batches
from trellis.devices import fitting_memory
from trellis.errors import TrellisError
from trellis.learning.base import Learner, under
from trellis.models.files import intact
from trellis.progress import Progress, progress
from trellis.storage import clear_partial
from trellis.training.callbacks import Callback
from trellis.training.checkpoint import BEST, LAST, restore_checkpoint, save_checkpoint
from trellis.training.metrics import VALID_PPL, MetricsFile
from trellis.training.state import TrainState

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
SECONDS = "seconds"  # the outcome of a run that ended by max_seconds
LARGEST_LOSS = 700.0  # nats per token; beyond this the perplexity overflows
SHORTEST_WINDOW = 1e-9  # seconds; avoids a division by zero
SMALLER = "use fewer sequences or tokens per batch (batches.lanes, window or tokens), or fewer states"
ADVICE = "try a lower train.lr or train.clip, a longer train.warmup, or less dropout"
BETWEEN = 0.5  # seconds of steps after which processes compare their clocks and signals
NO_PATH = "dropout may make a text impossible: lower model.dropout_rate or train.lr, or use more states per word"


def fit(
    learner: Learner,
    batches: Batches,
    evaluate: Callable[[], float],
    config: TrainConfig,
    run_dir: Path | None = None,
    resume: bool = False,
    measure: str = VALID_PPL,
    callbacks: Sequence[Callback] = (),
) -> TrainState:
    """Train until a limit of `config` is reached; write the checkpoints `last` and `best`, and metrics.jsonl.

    Without a folder nothing is written; the returned state has the history and the best weights.

    `evaluate` returns the validation perplexity of the current model, or another `measure` to minimise. If a run is
    killed at any point and resumed, it ends with bit-identical weights on a CPU with the same number of threads. The
    exception is a run that ends by `max_seconds`, since the clock is not part of the state. After SIGINT or SIGTERM,
    training stops at the end of the current step, with a checkpoint and the outcome "interrupted"; a second signal
    stops it immediately.
    """
    state = TrainState() if run_dir is None else _begin(learner, batches, run_dir, resume)
    total = config.total_steps(len(batches)) or None
    with (
        _caught_signals() as signals,
        MetricsFile(run_dir and run_dir / METRICS if distributed.is_first() else None, state.lines) as metrics,
        progress("train", total, "steps") as bar,
    ):
        bar.advance(state.step)
        run = _Run(learner, batches, evaluate, config, run_dir, state, metrics, bar, measure, callbacks)
        state.outcome, state.history = run.limit(), metrics.history
        moments = run.steps()
        while not state.outcome:
            run.after_step(epoch_ended=next(moments), signalled=bool(signals))
    if state.interrupted and run_dir is not None:
        name = signals[0] if signals else "a signal to another process"
        logger.warning("Stopped by %s at step %d; resume continues from %s.", name, state.step, run_dir / LAST)
    if state.outcome == SECONDS:
        logger.info("Training stopped at its time limit, at step %d%s.", state.step, f" of {total}" if total else "")
    return state


def _begin(learner: Learner, batches: Batches, run_dir: Path, resume: bool) -> TrainState:
    """The initial state of the loop: that of the last checkpoint if the run is resumed, otherwise a new one."""
    checkpoint = run_dir / LAST
    if distributed.is_first():
        clear_partial(run_dir)
    if not distributed.from_first(checkpoint.exists):
        return TrainState()
    if not resume:
        raise TrellisError(f"{run_dir} already contains a training run; resume it, or choose another folder.")
    return restore_checkpoint(checkpoint, learner, batches)


@dataclass
class _Run:
    """A run of the training loop."""

    learner: Learner
    batches: Batches
    evaluate: Callable[[], float]
    config: TrainConfig
    run_dir: Path | None
    state: TrainState
    metrics: MetricsFile
    bar: Progress
    measure: str
    callbacks: Sequence[Callback]

    def __post_init__(self) -> None:
        self.saved_step = self.resumed_step = self.state.step
        self.clock, self.saved_seconds = time.monotonic(), self.state.seconds
        self.compared_step = self.next_comparison = self.state.step

    def steps(self) -> Iterator[bool]:
        """Train indefinitely; yield after each step whether it ended an epoch."""
        while True:
            for batch in self.batches:
                with self.resumed(), fitting_memory("A training step", SMALLER):
                    self.state.count(self.learner.step(batch))
                self.bar.advance(1)
                if self.state.batch < len(self.batches):
                    yield False
            if self.state.batch == 0:
                raise TrellisError("Nothing to train on: the text yields no batch of this size.")
            self.learner.end_epoch()
            self.state.end_epoch()
            yield True

    def resumed(self) -> AbstractContextManager[None]:
        """A context for a training step. The first step after resuming uses all tensors of the checkpoint, so an error
        there is reported as a damaged checkpoint."""
        first = 0 < self.state.step == self.resumed_step
        return intact(self.run_dir / LAST) if first and self.run_dir is not None else nullcontext()

    def after_step(self, epoch_ended: bool, signalled: bool) -> None:
        """Evaluate, report and save if it is time to do so, and check whether training ends."""
        config, state = self.config, self.state
        interrupted = self._compares(epoch_ended) and self._compare(signalled)
        for callback in self.callbacks:
            callback.on_step(state)
        finished = self.limit()
        if finished or (_due(state.step, config.eval_every) if config.eval_every else epoch_ended):
            self._evaluate()
        elif _due(state.step, config.log_every):
            self._report(valid=None)
        late = 0 < config.checkpoint_seconds <= state.seconds - self.saved_seconds
        if self.saved_step < state.step and (interrupted or late or _due(state.step, config.checkpoint_steps)):
            self._save(LAST)
        state.outcome = finished or self.limit() or ("interrupted" if interrupted else "")

    def _compares(self, epoch_ended: bool) -> bool:
        """Whether the processes compare clocks and signals after this step. If they did so after every step, the
        processes would wait for each other."""
        config, step = self.config, self.state.step
        regular = (config.eval_every, config.log_every, config.checkpoint_steps)
        due = epoch_ended or bool(self.limit()) or any(_due(step, every) for every in regular)
        return due or step >= self.next_comparison or not distributed.is_joined()

    def _compare(self, signalled: bool) -> bool:
        """Record the time of the steps since the last comparison; returns whether a signal has arrived."""
        step = self.state.step
        steps = max(1, step - self.compared_step)
        elapsed, interrupted = self._tick(signalled)
        self.state.window_seconds += elapsed
        soon = min(2 * steps, int(BETWEEN * steps / max(elapsed, SHORTEST_WINDOW)))  # a GPU may be far behind the clock
        self.compared_step, self.next_comparison = step, step + max(1, soon)
        return interrupted

    def limit(self) -> str:
        """The limit that was reached, or an empty string."""
        config, state = self.config, self.state
        limits = {
            "epochs": (state.epoch, config.epochs),
            "steps": (state.step, config.max_steps),
            SECONDS: (state.seconds, config.max_seconds),
            "patience": (state.bad_checks, config.patience),
        }
        return next((name for name, (value, most) in limits.items() if 0 < most <= value), "")

    def _evaluate(self) -> None:
        """Evaluate on the validation set, and save: first `best`, so that `last` never refers to a missing `best`."""
        self._checked_loss()
        with self.learner.evaluated():
            valid = distributed.from_first(partial(float, self.evaluate()))
        self._tick()
        if math.isnan(valid):
            raise self._broken(f"{self.measure} is nan")
        better = self.state.observe(valid)
        self.learner.observe(valid)
        line = self._report(valid)
        for callback in self.callbacks:
            callback.on_evaluation(self.state, line)
        if better:
            self._save(BEST)
        self._save(LAST)

    def _report(self, valid: float | None) -> dict[str, Any]:
        """Write a line of metrics, and begin to add up losses for the next line."""
        state = self.state
        loss = self._checked_loss()
        if loss > state.lowest_loss + (self.config.max_rise or math.inf):
            raise self._broken(f"the train loss rose from {state.lowest_loss:.4g} to {loss:.4g} nats per token")
        state.lowest_loss = min(state.lowest_loss, loss)
        train = math.exp(min(loss, LARGEST_LOSS))
        speed = state.window_tokens / max(state.window_seconds, SHORTEST_WINDOW)
        where = {"step": state.step, "epoch": state.epoch, "tokens": state.tokens, "seconds": state.seconds}
        figures = {"train_ppl": train, self.measure: valid, "lr": self.learner.rate, "tokens_per_second": speed}
        line = self.metrics.append(**where, **figures)
        self.bar.update(train=train, **({} if valid is None else {"valid": valid}), **{"tok/s": round(speed)})
        state.begin_window()
        return line

    def _save(self, name: str) -> None:
        self._checked_loss()
        if self.run_dir is not None:
            save_checkpoint(self.run_dir / name, self.learner, self.batches, self.state)
        elif name == BEST:
            weights = under("model.", self.learner.state_tensors())
            self.state.weights = {key: value.detach().clone() for key, value in weights.items()}
        self._tick()
        self.saved_step, self.saved_seconds = self.state.step, self.state.seconds

    def _checked_loss(self) -> float:
        """The train loss since the last line of metrics; raises if the loss of any step was not finite."""
        loss = self.state.window_loss()
        if not math.isfinite(loss):
            raise self._broken(f"the train loss or its gradient is {loss}", ADVICE if math.isnan(loss) else NO_PATH)
        return loss

    def _broken(self, reason: str, advice: str = ADVICE) -> TrellisError:
        state, checkpoint = self.state, self.run_dir and self.run_dir / LAST
        steps = f"Between steps {state.window_start + 1} and {state.step} "
        saved = f"the last good checkpoint is {checkpoint} (step {self.saved_step})"
        saved = saved if checkpoint is not None and checkpoint.exists() else "no checkpoint has been written yet"
        return TrellisError(f"{steps}{reason}; {saved}; {advice}.")

    def _tick(self, signalled: bool = False) -> tuple[float, bool]:
        """Add the time since the last call to the total training time. Returns the time since the last call, and
        whether a signal has arrived; both are the maximum over all processes."""
        own = time.monotonic() - self.clock
        self.clock += own
        elapsed, interrupted = distributed.largest(own, signalled)
        self.state.seconds += elapsed
        return elapsed, bool(interrupted)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextmanager
def _caught_signals() -> Iterator[list[str]]:
    """Collect SIGINT and SIGTERM by name instead of stopping; a second signal stops immediately."""
    caught: list[str] = []

    def remember(number: int, _: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    previous = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
