"""Parameters of a factorial HMM: a chain per layer, and additive word scores."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.families.factorial.loglinear import LogLinear, NoisyOr
from trellis.families.factorial.mean_field import Chains
from trellis.families.hmm.parameters.table import LOG_ZERO
from trellis.options import choose

SPREAD = 1.0  # initial standard deviation of the scores, which breaks the symmetry of the layers
COMBINATIONS = {"log-linear": LogLinear, "noisy-or": NoisyOr}  # joint emission types


class LayeredParams(nn.Module):
    """Logits of starts [K_m] and transitions [K_m, K_m]; theta [V, S], S = sum_m K_m, or its factors [V, d] and [d, S];
    the bias [V] is added to the log-frequency of the words."""

    unigram: Tensor

    def __init__(self, sizes: Sequence[int], num_words: int, dim: int = 0, seed: int = 0, combine: str = "log-linear"):
        super().__init__()
        choose(COMBINATIONS, combine, "model.combine")
        if not sizes or min(sizes) < 1:
            raise TrellisError(f"The layers have {list(sizes)} states; use at least one layer of at least 1 state.")
        self.sizes, self.dim, self.combine = tuple(sizes), dim, combine
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, spread: float = SPREAD) -> nn.Parameter:
            return nn.Parameter(spread * torch.randn(shape, generator=generator))

        self.starts = nn.ParameterList([normal(size) for size in sizes])
        self.transitions = nn.ParameterList([normal(size, size) for size in sizes])
        width = sum(sizes)
        self.words = normal(num_words, dim or width, spread=math.sqrt(SPREAD) if dim else SPREAD)
        self.states = normal(dim, width, spread=math.sqrt(SPREAD / dim)) if dim else None
        self.bias = nn.Parameter(torch.zeros(num_words))
        self.register_buffer("unigram", torch.zeros(num_words))

    def set_unigram(self, log_frequency: Tensor) -> None:
        """Set the baseline log-probabilities of the words [V]."""
        self.unigram.copy_(log_frequency)

    def theta(self) -> Tensor:
        """The word scores of all layers, concatenated: [V, S]."""
        return self.words if self.states is None else self.words @ self.states

    def emission(self) -> LogLinear:
        """The emission; in a noisy-or, states and the leak initially activate a word about as often as it occurs."""
        if self.combine == "noisy-or":
            return NoisyOr(self.unigram.unsqueeze(-1) + self.theta(), self.unigram + self.bias, self.sizes)
        return LogLinear(self.theta(), self.unigram + self.bias, self.sizes)

    def chains(self) -> Chains:
        """Start [K_m] and transition [K_m, K_m] of each layer."""
        starts, transitions = ([logits.softmax(-1) for logits in layers] for layers in (self.starts, self.transitions))
        return Chains(starts, transitions)

    @torch.no_grad()
    def maximise(self, starts: Sequence[Tensor], transitions: Sequence[Tensor], pseudocount: float) -> None:
        """The M-step of starts and transitions from their expected counts."""
        for logits, counts in zip([*self.starts, *self.transitions], [*starts, *transitions], strict=True):
            logits.copy_((counts + pseudocount).log().clamp(min=LOG_ZERO))
