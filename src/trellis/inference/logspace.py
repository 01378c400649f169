"""Forward and backward in log space: slow, for probabilities too far apart for the scaled arithmetic of `discrete`.

A density may make one state exp(1000) times likelier than the next; where only the next can be reached, scaled numbers
are all zero and the sequence looks impossible. Posteriors and counts are gradients of the log-likelihood.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.transitions import Transition
from trellis.types import Belief, Counts, Posterior, Potentials

FLOOR = -1e300  # stands for -inf, so that differences of two of them are numbers
IMPOSSIBLE = -1e299  # what is below contains a FLOOR
WIDE = 600.0  # nats between states at one step that scaled float64 may lose


def log(values: Tensor) -> Tensor:
    return values.log().clamp(min=FLOOR)


def is_wide(potentials: Potentials) -> bool:
    """Whether some observation tells states so far apart that scaled arithmetic may have lost one."""
    table = potentials.table
    return bool((table.amax(-1) - table.masked_fill(table == -torch.inf, torch.inf).amin(-1) > WIDE).any())


def log_forward(log_prior: Tensor, log_matrix: Tensor, log_potentials: Tensor, lengths: Tensor) -> Tensor:
    """log p(x) in float64 from [B, K], [K, K] and [B, T, K]: [B]; below IMPOSSIBLE where it is zero."""
    scores = log_prior + log_potentials[:, 0]
    for t in range(1, log_potentials.shape[1]):
        onward = (scores.unsqueeze(-1) + log_matrix).logsumexp(-2) + log_potentials[:, t]
        scores = torch.where((t < lengths).unsqueeze(-1), onward, scores)
    return scores.logsumexp(-1)


@torch.enable_grad()
def differentiate(
    prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """log p(x) [B], and expected starts [B, K], transitions [K, K] and posteriors [B, T, K], zero where impossible."""
    given = log(prior.probs), log(transition.dense()), potentials.gather().clamp(min=FLOOR)
    start, moves, weights = leaves = tuple(value.detach().requires_grad_() for value in given)
    total = log_forward(start, moves, weights, lengths)
    possible = total > IMPOSSIBLE
    gradients = torch.autograd.grad((total * possible).sum(), leaves)
    return total.detach().masked_fill(~possible, -torch.inf), gradients


def smooth(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> Posterior:
    """p(z_t | x) for every step."""
    log_likelihood, (_, _, posteriors) = differentiate(prior, transition, potentials, lengths)
    return Posterior(log_likelihood, posteriors)


def counts(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> Counts:
    """Expected starts, transitions and visits, added up over the batch."""
    log_likelihood, (starts, moves, posteriors) = differentiate(prior, transition, potentials, lengths)
    seen = posteriors * (potentials.rows >= 0).unsqueeze(-1)
    visits = torch.zeros_like(potentials.table).index_add(0, potentials.rows.clamp(min=0).flatten(), seen.flatten(0, 1))
    return Counts(log_likelihood.sum(), starts.sum(0), moves, visits)
