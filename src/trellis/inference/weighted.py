"""Expected counts of sequences with weights or with partly known states."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.engines.reference import add_rows
from trellis.inference import discrete
from trellis.transitions import Dense
from trellis.types import Belief, Counts, Potentials


def given(potentials: Potentials, states: Tensor) -> Potentials:
    """The potentials given known states [B, T] (-1: unknown), with one row per step.

    If the state of step t is known, o_t(z) is zero for all other states z."""
    names = torch.arange(potentials.table.shape[-1], device=states.device)
    excluded = (states >= 0).unsqueeze(-1) & (states.unsqueeze(-1) != names)
    return Potentials.of(potentials.gather().masked_fill(excluded, -torch.inf))


def counts(
    prior: Belief,
    transition: Dense,
    potentials: Potentials,
    lengths: Tensor,
    states: Tensor | None = None,
    weights: Tensor | None = None,
) -> Counts:
    """Expected starts, transitions, and visits by row of the table, given known states [B, T]. Sequences are
    summed with the given weights [B]."""
    here = potentials if states is None else given(potentials, states)
    problem = prior, transition, here, lengths
    found = discrete.counts(*problem)[0] if weights is None else weighted(*problem, weights)
    if states is None:
        return found
    return found._replace(emission=add_rows(potentials, found.emission.view(*states.shape, -1)))


def weighted(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor, weights: Tensor) -> Counts:
    """Expected counts of sequences x_b, summed with weights w_b: the gradient of sum_b w_b log p(x_b) with respect to
    the logarithms of starts, transitions and potentials.

    Sequences that underflow are counted one by one, because they are not recomputed while gradients are recorded."""
    leaves = [value.detach().requires_grad_() for value in (prior.probs, transition.matrix, potentials.table)]
    start, matrix, table = leaves
    with torch.enable_grad():
        problem = Belief(start), Dense(matrix), potentials._replace(table=table), lengths
        logs = discrete.log_likelihood(*problem)
        possible = logs > -torch.inf
        total = (weights[possible] * logs[possible]).sum()
    by_start, by_matrix, visits = torch.autograd.grad(total, leaves)
    starts, moves = (prior.probs * by_start).sum(0), transition.matrix * by_matrix
    found = Counts(total.detach(), *(value.clamp(min=0) for value in (starts, moves, visits)))
    for b in (~possible).nonzero().flatten().tolist():
        one = slice(b, b + 1)
        rows = potentials._replace(rows=potentials.rows[one])
        again, _ = discrete.counts(Belief(prior.probs[one]), transition, rows, lengths[one])
        found = found.plus(again, float(weights[b]))
    return found
