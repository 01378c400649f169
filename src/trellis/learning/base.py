"""The interfaces between the training loop, learners and gradient-trained models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.parts import Parts, Prior
from trellis.types import Batch, Counts


class StepResult(NamedTuple):
    """The log-likelihood of a batch (a float, or a scalar tensor on the device) and its number of tokens.

    If the gradient of a step was not finite, the log-likelihood is nan.
    """

    log_likelihood: Tensor | float
    tokens: int


class Learner(Protocol):
    """Trains a model batch by batch. `state_tensors` and `state_json` return everything that later steps depend on.

    Random numbers come from torch's global generator, whose state is saved in checkpoints; the state of any other
    generator belongs in `state_json`.
    """

    @property
    def rate(self) -> float:
        """The learning rate or step size of the last step, for logging."""

    @property
    def idle(self) -> bool:
        """Whether the last batch had no row for this process."""

    def step(self, batch: Batch) -> StepResult:
        """Learn from one batch."""

    def end_epoch(self) -> None:
        """Do what the end of an epoch requires, such as the M-step of batch EM."""

    def observe(self, valid: float) -> None:
        """Record the validation perplexity after an evaluation, for example to adapt the learning rate."""

    def evaluated(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights to evaluate (the average, if there is one)."""

    def state_tensors(self) -> dict[str, Tensor]:
        """The tensors that `restore` needs. Those called `model.<name>` are the model's state within `evaluated`."""

    def state_json(self) -> dict[str, Any]:
        """The JSON values that `restore` needs."""

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        """Restore the state saved by `state_tensors` and `state_json`."""


def nothing_to_fetch(rows: Mapping[nn.Parameter, Tensor]) -> None:
    """Do nothing: this process has all rows of all weights."""


class GradientModel(nn.Module):
    """A model that can be trained by gradient. `state` is passed from batch to batch, and is initially None."""

    synchronises: bool = False  # whether `log_likelihood` waits for the device, which rules out CUDA graphs

    any_lengths: bool = False  # whether sentences of different lengths need no special treatment
    rough: bool = False  # whether a GPU multiplies matrices of float32 in TF32 during training
    fetch: Callable[[Mapping[nn.Parameter, Tensor]], None] = staticmethod(nothing_to_fetch)

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The log-likelihood of the batch (a scalar) and the state after it (or None).

        For a batch without padding, the method must not wait for the device, unless `synchronises` is True."""
        raise NotImplementedError

    def touched_rows(self) -> dict[nn.Parameter, Tensor]:
        """The rows of weights of which the last `log_likelihood` is a function, where these are not all rows. They are
        the same in all processes."""
        return {}

    def sparsely_read(self) -> list[nn.Parameter]:
        """Weights of which a training step reads few rows. With `touched_rows`, `log_likelihood` must call `fetch`
        before it reads them."""
        return []

    def state_to_tensors(self, state: Any) -> dict[str, Tensor]:
        """Convert a state that is not None to named tensors."""
        return {}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """Restore a state from the tensors of `state_to_tensors`."""
        return None

    @property
    def anneals(self) -> bool:
        """Whether the model depends on training progress, so that the total number of steps must be known."""
        return False

    def advance(self, done: float) -> object:
        """Set the training progress, from 0 to 1; returns a value that determines the shapes of a step."""
        return None


class Maximisable(ABC):
    """Parameters with an M-step, which by default applies the M-step of each part and writes the result back."""

    @abstractmethod
    def parts(self) -> Parts:
        """The start, transition and emission probabilities."""

    @abstractmethod
    def write(self, parts: Parts) -> None:
        """Set the parameters so that `parts` returns these parts."""

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        """The M-step: re-estimate the parameters from expected counts, which may be overwritten."""
        self.write(self.parts().maximised(counts, prior, consume=True))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, under names without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def wrong_checkpoint(error: Exception) -> TrellisError:
    """The error for a checkpoint with unexpected tensors."""
    return TrellisError(f"The checkpoint does not match this model and learner: {' '.join(str(error).split())}.")
