"""The scalar parameterization: one logit per probability."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.operators import Dense
from trellis.types import Counts

LOG_ZERO = -1e30  # the logit of a probability that EM has estimated as zero: exp gives 0, and gradients stay finite


class TableParams(nn.Module):
    """Logits of the start [K], of the transitions [K, K] and of the emissions [V, k] (see `Categorical`).

    Any module with these three methods, `start`, `transition` and `emission`, can stand in its place."""

    support: Tensor | None

    def __init__(
        self, num_states: int, num_words: int, support: Tensor | None = None, spread: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        self.num_states = num_states
        generator = torch.Generator().manual_seed(seed)
        live = num_states if support is None else support.shape[1]

        def logits(*shape: int) -> nn.Parameter:
            return nn.Parameter(spread * torch.randn(shape, generator=generator))

        self.start_logits = logits(num_states)
        self.transition_logits = logits(num_states, num_states)
        self.emission_logits = logits(num_words, live)
        self.register_buffer("support", support)

    def start(self) -> Tensor:
        """p(z_0): [K]."""
        return self.start_logits.softmax(-1)

    def transition(self) -> Dense:
        """p(z' | z)."""
        return Dense(self.transition_logits.softmax(-1))

    def emission(self) -> Categorical:
        """p(x | z)."""
        table = self.emission_logits - self.word_normaliser()
        table = table.masked_fill(self.emission_logits <= LOG_ZERO, -torch.inf)
        return Categorical(table, self.support, self.num_states)

    def word_normaliser(self) -> Tensor:
        """log sum over a state's words of exp(logit), laid out like the emission logits."""
        if self.support is None:
            return self.emission_logits.logsumexp(0)
        return add_by_state(self.emission_logits, self.support, self.num_states)[self.support]

    @torch.no_grad()
    def maximise(self, counts: Counts, pseudocount: float = 0.0) -> None:
        """The M-step: probabilities proportional to expected counts. A state never visited keeps what it had."""
        emission = counts.emission + pseudocount
        used = emission if self.support is None else visits_by_state(emission, self.support, self.num_states)
        replace(self.start_logits, counts.start + pseudocount, (counts.start + pseudocount).sum(-1, keepdim=True))
        moves = counts.transition + pseudocount
        replace(self.transition_logits, moves, moves.sum(-1, keepdim=True))
        replace(self.emission_logits, emission, used.sum(0) if self.support is None else used)

    @torch.no_grad()
    def set_probabilities(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        """Set p(z_0) [K], p(z' | z) [K, K] and p(x | z) [K, V]."""
        given = {"start": start, "transition": transition, "emission": emission}
        for name, probs in given.items():
            if not torch.allclose(probs.sum(-1), probs.new_ones(()), atol=1e-4):
                raise TrellisError(
                    f"The {name} probabilities do not sum to one along the last axis; normalise them first."
                )
        table = emission.T if self.support is None else emission.T.gather(1, self.support)
        for logits, probs in (
            (self.start_logits, start),
            (self.transition_logits, transition),
            (self.emission_logits, table),
        ):
            logits.copy_(probs.log().clamp(min=LOG_ZERO))


def replace(logits: Tensor, counts: Tensor, total: Tensor) -> None:
    """logits := log(counts / total) where there is a total."""
    estimate = (counts.log() - total.log()).clamp(min=LOG_ZERO)
    logits.copy_(torch.where(total > 0, estimate.to(logits.dtype), logits))


def add_by_state(logits: Tensor, support: Tensor, num_states: int) -> Tensor:
    """logsumexp over all entries [V, k] that belong to each state: [K]; -inf for a state without words."""
    top = torch.full((num_states,), -torch.inf, dtype=logits.dtype, device=logits.device)
    top = top.scatter_reduce(0, support.flatten(), logits.detach().flatten(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    scaled = (logits - shift[support]).exp().flatten()
    return torch.zeros_like(top).scatter_add(0, support.flatten(), scaled).log() + shift


def visits_by_state(visits: Tensor, support: Tensor, num_states: int) -> Tensor:
    """The total visits of each entry's state, laid out like the entries: [V, k]."""
    total = visits.new_zeros(num_states).scatter_add(0, support.flatten(), visits.flatten())
    return total[support]
