"""Callbacks, which can log or plot during training, or stop it by raising an exception."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trellis.errors import TrellisError
from trellis.training.state import TrainState

SKIPPED = "step", "epoch", "tokens", "seconds"


class Callback:
    """Base class of callbacks: override the methods you need, and pass an instance to `trellis.train(callbacks=[...])`.

    Examples
    --------
    >>> class Print(trellis.Callback):
    ...     def on_evaluation(self, state, metrics):
    ...         print(state.epoch, sorted(metrics)[0])
    >>> _ = trellis.train(["a b"] * 20, states=2, epochs=1, callbacks=[Print()])
    1 epoch
    """

    def on_step(self, state: TrainState) -> None:
        """Override this to act after every step. Reading values of `state` that are on the GPU waits for the GPU."""

    def on_evaluation(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """Override this to act after every evaluation. A run appends the same `metrics` to metrics.jsonl."""


class TensorBoard(Callback):
    """Log the metrics of every evaluation as TensorBoard scalars.

    Parameters
    ----------
    folder
        The folder for TensorBoard's event files.

    Examples
    --------
    >>> trellis.train("ptb", callbacks=[trellis.TensorBoard("runs/ptb/events")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrellisError("TensorBoard is not installed; run pip install 'trellis-hmm[tensorboard]'.") from error
        self.writer = SummaryWriter(str(folder))

    def on_evaluation(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if name not in SKIPPED and isinstance(value, int | float):
                self.writer.add_scalar(name, value, state.step)
        self.writer.flush()
