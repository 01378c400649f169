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
    """The result of one batch: its log-likelihood (a number, or a scalar still on the device) and token count.

    A failed step (a non-finite gradient) reports nan.
    """

    log_likelihood: Tensor | float
    tokens: int


class Learner(Protocol):
    """Improves a model batch by batch; `state_tensors` and `state_json` hold everything that later steps depend on.

    Randomness comes from torch's global generator, which the checkpoint saves; a private generator belongs in
    `state_json`.
    """

    @property
    def rate(self) -> float:
        """The learning rate or step size of the last step, for logging."""

    def step(self, batch: Batch) -> StepResult:
        """Learn from one batch."""

    def end_epoch(self) -> None:
        """Called at the end of an epoch."""

    def observe(self, valid: float) -> None:
        """Called with the valid perplexity after each evaluation."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Within this block the model has the weights to evaluate (the average, if there is one)."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything `restore` needs; names `model.<name>` are the model's state as seen within `evaluated`."""

    def state_json(self) -> dict[str, Any]:
        """The rest of the state, as JSON values."""

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        """Restore the state saved by `state_tensors` and `state_json`."""


class GradientModel(nn.Module):
    """A model trainable by gradient; `state` is the belief carried over between batches, initially None."""

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The log-likelihood of the batch (a scalar) and the belief after it (or None).

        For a full batch this must not synchronise with the device."""
        raise NotImplementedError

    def state_to_tensors(self, state: Any) -> dict[str, Tensor]:
        """Convert a belief (never None) to named tensors."""
        return {}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """Restore a belief from `state_to_tensors`."""
        return None

    @property
    def anneals(self) -> bool:
        """Whether anything depends on training progress, so that the total number of steps must be known."""
        return False

    def advance(self, done: float) -> object:
        """Set the training progress, from 0 to 1; returns whatever the shapes of a step depend on."""
        return None


class Maximisable(ABC):
    """Parameters with an M-step: by default that of each part, written back."""

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
