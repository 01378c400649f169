"""Batched gradient descent on many small problems; each problem keeps its best weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "sgd": torch.optim.SGD,
    "lbfgs": partial(
        torch.optim.LBFGS,
        max_iter=1,
        max_eval=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=0.0,
        tolerance_change=0.0,
    ),
}
RESCALED = ("lbfgs",)  # L-BFGS has absolute thresholds, so each loss is divided by its initial value
TINY = 1e-30
SMALL = 1 << 17  # number of weights below which multithreading does not pay


@contextmanager
def few_threads(weights: Sequence[Tensor]) -> Iterator[None]:
    """A context in which small problems run on a single thread."""
    before = torch.get_num_threads()
    if sum(weight.numel() for weight in weights) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Descent(NamedTuple):
    """The result of a descent."""

    history: Tensor  # [evaluations, ...]: the losses before every step
    best: Tensor  # [...]: the losses of the final weights


class Best:
    """The lowest loss of each problem so far [...], and the weights [..., *] that gave this loss."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = weights
        self.kept = [weight.detach().clone() for weight in weights]
        self.losses: Tensor | None = None

    @torch.no_grad()
    def see(self, losses: Tensor) -> None:
        better = ~losses.isnan() if self.losses is None else losses < self.losses
        self.losses = losses.clone() if self.losses is None else torch.where(better, losses, self.losses)
        for weight, kept in zip(self.weights, self.kept, strict=True):
            chosen = better.view(*better.shape, *[1] * (weight.dim() - better.dim()))
            torch.where(chosen, weight, kept, out=kept)

    @torch.no_grad()
    def restore(self) -> Tensor:
        """Restore the best weights and return their losses."""
        for weight, kept in zip(self.weights, self.kept, strict=True):
            weight.copy_(kept)
        assert self.losses is not None
        return self.losses


def minimise(
    weights: Sequence[Tensor], loss: Callable[[], Tensor], steps: int, optimizer: str = "adam", lr: float = 0.01
) -> Descent:
    """Minimise the losses [...] of independent problems with weights [..., *], and leave the best weights in place.

    Final losses are never higher than initial ones."""
    if not weights:
        losses = loss().detach()
        return Descent(losses.unsqueeze(0), losses)
    descent, best, history = OPTIMIZERS[optimizer](weights, lr=lr), Best(weights), []

    def evaluate() -> Any:
        descent.zero_grad()
        losses = loss()
        history.append(losses.detach())
        total = (losses / history[0].abs().clamp(min=TINY) if optimizer in RESCALED else losses).sum()
        total.backward()
        best.see(losses.detach())
        return total

    with few_threads(weights):
        for _ in range(steps):
            descent.step(evaluate)
        with torch.no_grad():
            history.append(loss())
            best.see(history[-1])
    return Descent(torch.stack(history), best.restore())
