"""The noise of the loss and its gradient under state dropout, with and without a partition.

Each sample keeps the same number of states and normalises start and transitions over them. "By class" keeps the same
number in every class; "anywhere" samples from all states, so a word may keep more or fewer of its own."""

from __future__ import annotations

from statistics import mean, stdev

import torch
from torch import Tensor

from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters.base import add_by_state
from trellis.inference import discrete
from trellis.transitions import Dense
from trellis.types import Batch, Belief


def dropout_variance(model: HMM, batch: Batch, kept: float, draws: int, seed: int = 0) -> dict[str, float]:
    """Mean and standard deviation of the loss (nats per token), noise of the gradient, E|g - Eg|^2 / |Eg|^2, and
    fraction of samples for which the batch is impossible, for states sampled by class and anywhere."""
    support = model.parts().emission.support
    if support is None or support.unique(dim=0).numel() > support.unique().numel():
        raise TrellisError("State dropout by class needs classes that share no states: use model.emission = 'brown'.")
    groups = {"by_class": support.unique(dim=0), "anywhere": support.unique()[None]}
    return {
        f"{figure}_{name}": value
        for name, states in groups.items()
        for figure, value in noise(dense_logits(model), support, batch, states, kept, draws, seed).items()
    }


@torch.no_grad()
def dense_logits(model: HMM) -> list[Tensor]:
    """Start [K], transitions [K, K] and emissions [V, k] of a small model as plain tensors."""
    start, transition, emission = model.parts()
    return [start.log(), transition.dense().log(), emission.table]


def noise(
    logits: list[Tensor], support: Tensor, batch: Batch, groups: Tensor, kept: float, draws: int, seed: int
) -> dict[str, float]:
    """The figures for states sampled within groups [groups, size]."""
    generator = torch.Generator().manual_seed(seed)
    logits = [value.detach().clone().requires_grad_() for value in logits]
    losses: list[float] = []
    total, squares = torch.zeros(()), 0.0
    for _ in range(draws):
        loss = restricted_loss(logits, support, batch, draw(groups, kept, generator))
        if not bool(loss.isfinite()):
            continue
        gradient = torch.cat([part.flatten().double() for part in torch.autograd.grad(loss, logits)])
        losses.append(loss.item())
        total, squares = total + gradient, squares + float(gradient @ gradient)
    n = len(losses)
    if n < 2:
        return {"impossible": 1 - n / draws}
    mean_square = float((total / n).square().sum())
    return {
        "loss": mean(losses),
        "loss_deviation": stdev(losses),
        "gradient_noise": (squares / n / mean_square - 1) * n / (n - 1),
        "impossible": 1 - n / draws,
    }


def draw(groups: Tensor, kept: float, generator: torch.Generator) -> Tensor:
    """Sample the same fraction of states from every group [groups, size]; returns the kept states, unordered."""
    keys = torch.rand(groups.shape, generator=generator).to(groups.device)
    chosen = keys.topk(max(1, round(kept * groups.shape[1])), -1).indices
    return groups.gather(-1, chosen).flatten()


def restricted_loss(logits: list[Tensor], support: Tensor, batch: Batch, states: Tensor) -> Tensor:
    """Nats per token of a batch of new sequences, with start and transitions normalised over `states`."""
    start, transition, words = logits
    lost = torch.ones_like(start, dtype=torch.bool).index_fill(0, states, False)
    begin, matrix = (value.masked_fill(lost, -torch.inf).softmax(-1) for value in (start, transition))
    table = words - add_by_state(words, support, len(start))[support]
    potentials = Categorical(table, support, len(start)).potentials(batch.tokens)
    prior = Belief(begin.expand(len(batch.tokens), -1))
    log_likelihood = discrete.log_likelihood(prior, Dense(matrix), potentials, batch.lengths).sum()
    return -log_likelihood / batch.lengths.sum()
