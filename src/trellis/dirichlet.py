"""The M-step of a categorical distribution, and Dirichlet posteriors.

Convention throughout: a pseudocount p is a Dirichlet prior with parameter p + 1."""

import torch
from torch import Tensor

from trellis.kernels import estimates


def most_probable(
    counts: Tensor, pseudocount: float | Tensor, old: Tensor, dim: int = -1, keep_zeros: bool = True
) -> Tensor:
    """The M-step: the distributions p along `dim` that maximise sum (counts + pseudocount) log p, [..., n].

    A probability that is zero in `old` stays zero, unless `keep_zeros` is False. If counts + pseudocount is zero
    everywhere, the distribution keeps its `old` probabilities."""
    if dim == -1 and (kernels := estimates.fused(counts, pseudocount, old)):
        return kernels.rows(counts, pseudocount, old, keep_zeros)
    weights = (counts + pseudocount).clamp(min=0)
    if keep_zeros:
        weights = weights.masked_fill(old == 0, 0.0)
    total = weights.sum(dim, keepdim=True)
    return torch.where(total > 0, weights / total, old)


def expected_log(concentration: Tensor, dim: int = -1) -> Tensor:
    """E[log p] under Dirichlet distributions with these parameters, along `dim`."""
    if estimates.fused(concentration, 0.0, concentration) is estimates.arrays:
        return estimates.arrays.expected_log(concentration, dim)
    return torch.digamma(concentration) - torch.digamma(concentration.sum(dim, keepdim=True))


def divergence(posterior: Tensor, prior: Tensor, logs: Tensor) -> Tensor:
    """KL(posterior || prior) of Dirichlet distributions; `logs` is E[log p] under the posterior: [..., n] -> [...]."""
    if estimates.fused(posterior, 0.0, prior) is estimates.arrays:
        return estimates.arrays.divergence(posterior, prior, logs)
    normaliser = torch.lgamma(posterior.sum(-1)) - torch.lgamma(prior.sum(-1))
    terms = torch.lgamma(prior) - torch.lgamma(posterior) + (posterior - prior) * logs
    return normaliser + terms.sum(-1)
