"""Estimate the stationary distribution from a text, for models too large to iterate their transitions to
convergence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trellis.inference import discrete
from trellis.types import Batch

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM


@torch.no_grad()
def estimate_long_run(model: HMM, batches: Iterable[Batch]) -> tuple[Tensor, Tensor | None]:
    """State occupancy [K] and, if the text contains <eos>, the state distribution after it, estimated from a text."""
    start, transition, emission = model.parts()
    visits, endings = torch.zeros_like(start, dtype=torch.float64), []
    for batch in batches:
        batch = batch.to(model.device)
        potentials = emission.potentials(batch.tokens)
        prior = model.start(len(batch.tokens)).prior(start, transition, potentials.first_ids())
        probs = discrete.filter(prior, transition, potentials, batch.lengths).probs
        ids = potentials.ids
        places = ids if ids is not None else torch.arange(model.num_states, device=probs.device).expand_as(probs)
        visits.scatter_add_(0, places.flatten(), probs.flatten().double())
        endings.append(probs[(batch.tokens == model.vocab.eos) & potentials.inside(batch.lengths)])
    ending = torch.cat(endings).sum(0)
    return (visits / visits.sum()).to(start.dtype), ending / ending.sum() if float(ending.sum()) > 0 else None
