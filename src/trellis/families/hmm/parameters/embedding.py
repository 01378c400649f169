"""DenseHMM (Sicking et al. 2020): probabilities parameterised by state and symbol embeddings through a kernel.

    A[i, j] ∝ k(z_i, u_j),    pi[i] ∝ k(z_start, u_i),    B[i, j] ∝ k(w_i, v_j)

u represents a state as a successor, z as a predecessor, and w as the source of a symbol; v represents a symbol."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from trellis.families.hmm.parameters.kernels import KERNELS, log_probabilities
from trellis.learning.descent import minimise
from trellis.parts import Prior
from trellis.types import Counts

ROLES = ("u", "z", "z_start", "v", "w")
NO_PRIOR = Prior()


class EmbeddingParams(nn.Module):
    """Embeddings u, z [..., n, l], z_start [..., l] and, for emissions, possibly v [..., m, l'] and w [..., n, l'].

    Leading dimensions batch several models."""

    u: Tensor
    z: Tensor
    z_start: Tensor
    v: Tensor | None
    w: Tensor | None

    def __init__(self, vectors: Mapping[str, Tensor], kernel: str = "softmax", emission_kernel: str | None = None):
        super().__init__()
        self.kernel, self.emission_kernel = KERNELS[kernel], KERNELS[emission_kernel or kernel]
        for role in ROLES:
            self.register_parameter(role, nn.Parameter(vectors[role].clone()) if role in vectors else None)

    def weights(self, roles: Iterable[str] = ROLES) -> list[Tensor]:
        """The embeddings of these roles; all others are frozen."""
        for role, parameter in self.named_parameters():
            parameter.requires_grad_(role in roles)
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def log_start(self) -> Tensor:
        """log pi: [..., n]."""
        return log_probabilities(self.kernel, self.z_start.unsqueeze(-2), self.u).squeeze(-2)

    def log_transition(self) -> Tensor:
        """log A: [..., n, n]."""
        return log_probabilities(self.kernel, self.z, self.u)

    def log_emission(self) -> Tensor:
        """log B: [..., n, m]."""
        assert self.w is not None
        assert self.v is not None
        return log_probabilities(self.emission_kernel, self.w, self.v)

    def log_chain(self) -> tuple[Tensor, Tensor]:
        """log pi and log A."""
        return self.log_start(), self.log_transition()

    def expected_log_likelihood(self, counts: Counts) -> Tensor:
        """The expected complete-data log-likelihood of each model: [...].

        counts.emission is [..., m, n]; it is ignored if the emission is not parameterised by embeddings."""
        total = (counts.start * self.log_start()).sum(-1) + (counts.transition * self.log_transition()).sum((-2, -1))
        return total if self.v is None else total + (counts.emission.mT * self.log_emission()).sum((-2, -1))

    def maximise(
        self,
        counts: Counts,
        prior: Prior = NO_PRIOR,
        steps: int = 25,
        optimizer: str = "adam",
        lr: float = 0.01,
        roles: Iterable[str] = ROLES,
    ) -> None:
        """A joint M-step: gradient ascent on the expected log-likelihood of each model, which never decreases. If no
        step improves it, smaller steps are tried."""
        added = (count + (0.0 if p is None else p) for count, p in zip(counts[1:], prior[:3], strict=True))
        counts = Counts(counts.log_likelihood, *(count.clamp(min=0) for count in added))
        weights = self.weights(roles)
        size = counts.transition.sum((-2, -1)) + counts.start.sum(-1)
        for rate in (lr, lr / 10, lr / 100):
            result = minimise(weights, lambda: -self.expected_log_likelihood(counts) / size, steps, optimizer, rate)
            if bool((result.best < result.history[0]).all()):
                break


def stack_counts(counts: Iterable[Counts]) -> Counts:
    """Stack the counts of several models."""
    return Counts(*(torch.stack(values) for values in zip(*counts, strict=True)))
