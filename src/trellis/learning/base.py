"""What the training loop asks of a learner, and a gradient learner of a model."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.parts import Parts, Prior
from trellis.types import Batch, Counts


class StepResult(NamedTuple):
    """What one batch gave: its log-likelihood (a number, or a scalar still on the device) and its token count.

    A step that broke the learner (a gradient that is not finite) reports nan.
    """

    log_likelihood: Tensor | float
    tokens: int


class Learner(Protocol):
    """Improves a model batch by batch; `state_tensors` and `state_json` hold all that later steps depend on.

    Randomness comes from torch's global generator, which the checkpoint saves; a generator of one's own belongs in
    `state_json`.
    """

    @property
    def rate(self) -> float:
        """The learning rate or step size of the latest step, for the log."""

    def step(self, batch: Batch) -> StepResult:
        """Learn from one batch."""

    def end_epoch(self) -> None:
        """All batches of an epoch were seen."""

    def observe(self, valid: float) -> None:
        """An evaluation gave this valid perplexity."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Inside this block the model holds the weights to evaluate (the average where there is one)."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything `restore` needs; names `model.<name>` are the model's state as `evaluated` shows it."""

    def state_json(self) -> dict[str, Any]:
        """The rest of the state, as JSON values."""

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        """Become the learner that `state_tensors` and `state_json` were taken from."""


class GradientModel(nn.Module):
    """A model that gradients can train; `state` is the belief it carries from batch to batch, None at first."""

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The log-likelihood of the batch (a scalar) and the belief after it (or None).

        For a full batch nothing here may wait for the device."""
        raise NotImplementedError

    def state_to_tensors(self, state: Any) -> dict[str, Tensor]:
        """A belief (never None) as named tensors."""
        return {}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Any:
        """The belief that `state_to_tensors` named."""
        return None

    @property
    def anneals(self) -> bool:
        """Whether something changes with the progress of training, so that its end must be known."""
        return False

    def advance(self, done: float) -> object:
        """Training has come so far, from 0 to 1; returns whatever the shapes of a step depend on."""
        return None


class Maximisable(ABC):
    """Parameters with an M-step: by default each part's own, written back."""

    @abstractmethod
    def parts(self) -> Parts:
        """Start, transition and emission."""

    @abstractmethod
    def write(self, parts: Parts) -> None:
        """Become the parameters of these parts."""

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        """The M-step."""
        self.write(self.parts().maximised(counts, prior))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def wrong_checkpoint(error: Exception) -> TrellisError:
    """One sentence about a checkpoint whose tensors are others than those asked for."""
    return TrellisError(f"The checkpoint does not fit this model and its learner: {' '.join(str(error).split())}.")
