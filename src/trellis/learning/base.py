"""The interfaces between the training loop, learners and gradient-trained models."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.parts import Parts, Prior
from trellis.types import Batch, Counts


class StepResult(NamedTuple):
    """The log-likelihood of a batch (a float, or a scalar tensor on the device) and its number of tokens.

    A step that failed because of a non-finite gradient reports nan.
    """

    log_likelihood: Tensor | float
    tokens: int


class Learner(Protocol):
    """Trains a model batch by batch. `state_tensors` and `state_json` hold everything that later steps depend on.

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
        """Called at the end of an epoch."""

    def observe(self, valid: float) -> None:
        """Called with the validation perplexity after each evaluation."""

    def evaluated(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights to evaluate (the average, if there is one)."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything `restore` needs; names `model.<name>` are the model's state as seen within `evaluated`."""

    def state_json(self) -> dict[str, Any]:
        """The rest of the state, as JSON values."""

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        """Restore the state saved by `state_tensors` and `state_json`."""


class GradientModel(nn.Module):
    """A model that can be trained by gradient. `state` is carried over between batches and is initially None."""

    synchronises: bool = False  # whether its log-likelihood waits for the device, which rules out CUDA graphs

    any_lengths: bool = False  # whether sentences of unequal lengths are treated as those of equal lengths
    rough: bool = False  # whether a GPU multiplies matrices of float32 in TF32 during training

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The log-likelihood of the batch (a scalar) and the state after it (or None).

        For a full batch this must not synchronise with the device, unless `synchronises`."""
        raise NotImplementedError

    def state_to_tensors(self, state: Any) -> dict[str, Tensor]:
        """Convert a carried state (never None) to named tensors."""
        return {}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """Restore a carried state from `state_to_tensors`."""
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
        """Start, transition and emission."""

    @abstractmethod
    def write(self, parts: Parts) -> None:
        """Set the parameters to those of these parts."""

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        """The M-step."""
        self.write(self.parts().maximised(counts, prior))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, which is removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def wrong_checkpoint(error: Exception) -> TrellisError:
    """The error for a checkpoint with unexpected tensors."""
    return TrellisError(f"The checkpoint does not match this model and learner: {' '.join(str(error).split())}.")
