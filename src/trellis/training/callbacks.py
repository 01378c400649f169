"""What others may do while a model is trained: log, draw, stop by raising."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trellis.errors import TrellisError
from trellis.training.state import TrainState

SKIPPED = "step", "epoch", "tokens", "seconds"


class Callback:
    """Inherit, override what you need, and pass an instance to `trellis.train(..., callbacks=[...])`.

    >>> class Print(trellis.Callback):
    ...     def on_evaluation(self, state, metrics):
    ...         print(state.epoch, sorted(metrics)[0])
    >>> _ = trellis.train(["a b"] * 20, states=2, epochs=1, callbacks=[Print()])
    1 epoch
    """

    def on_step(self, state: TrainState) -> None:
        """After every step; its figures may still be on the device, and reading them waits for it."""

    def on_evaluation(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """After every evaluation: the line of metrics.jsonl that was written, the valid measure among its figures."""


class TensorBoard(Callback):
    """Write the metrics of every evaluation as TensorBoard scalars.

    >>> trellis.train("ptb", callbacks=[trellis.TensorBoard("runs/ptb/events")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrellisError("TensorBoard is not installed; install trellis-hmm[tensorboard].") from error
        self.writer = SummaryWriter(str(folder))

    def on_evaluation(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if name not in SKIPPED and isinstance(value, int | float):
                self.writer.add_scalar(name, value, state.step)
        self.writer.flush()
