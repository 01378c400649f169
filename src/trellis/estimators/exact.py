"""Inference that takes the slow way, in log space, for those sequences that the fast one has lost."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.inference import discrete, logspace
from trellis.transitions import Transition
from trellis.types import Belief, Counts, Posterior, Potentials

Chain = tuple[Belief, Transition, Potentials, Tensor]


def lost(log_likelihood: Tensor, chain: Chain) -> Tensor | None:
    """Which sequences look impossible but may not be, [n]; None where there are none."""
    _, _, potentials, _ = chain
    gone = (log_likelihood == -torch.inf).nonzero().squeeze(-1)
    return gone if len(gone) and logspace.is_wide(potentials) else None


def only(chain: Chain, sequences: Tensor) -> Chain:
    """The chain of some sequences."""
    prior, transition, potentials, lengths = chain
    longest = int(lengths[sequences].max())
    rows = potentials.rows[sequences, :longest]
    return Belief(prior.probs[sequences]), transition, Potentials(potentials.table, rows), lengths[sequences]


def log_likelihood(chain: Chain) -> Tensor:
    """log p(x): [B]."""
    total = discrete.log_likelihood(*chain)
    if (again := lost(total, chain)) is not None:
        total[again] = logspace.smooth(*only(chain, again)).log_likelihood
    return total


def smooth(chain: Chain) -> Posterior:
    """p(z_t | x) for every step."""
    found = discrete.smooth(*chain)
    if (again := lost(found.log_likelihood, chain)) is not None:
        right = logspace.smooth(*only(chain, again))
        found.log_likelihood[again] = right.log_likelihood
        found.probs[again, : right.probs.shape[1]] = right.probs
    return found


def counts(chain: Chain) -> Counts:
    """The statistics of EM, added up over the batch."""
    apart, _ = discrete.counts_apart(*chain)
    total = apart._replace(log_likelihood=apart.log_likelihood.sum(), start=apart.start.sum(0))
    if (again := lost(apart.log_likelihood, chain)) is None:
        return total
    kept = apart.log_likelihood[apart.log_likelihood > -torch.inf].sum()
    return total._replace(log_likelihood=kept).plus(logspace.counts(*only(chain, again)))
