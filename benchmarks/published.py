"""A training step of a large HMM by the published method, with a dense transition matrix and masked emissions.

It is optimised: bfloat16 logits, a compiled softmax, our kernels for the gradients of gathers and for the pass over
time. It has no start net, no carried state and no weight average, and it does not run as a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trellis.engines import score
from trellis.families.hmm.parameters.nets import Residual
from trellis.kernels.rows import pick, take
from trellis.transitions import Blocks
from trellis.types import Belief, Potentials


class Published(nn.Module):
    """C classes of n states each, V words, embeddings of d dimensions."""

    word_class: Tensor

    def __init__(self, word_class: Tensor, classes: int, states: int, dim: int, compiled: bool = True) -> None:
        super().__init__()
        self.classes, self.states = classes, states
        self.embedding = nn.Parameter(0.05 * torch.randn(classes * states, dim))
        self.words = nn.Parameter(torch.randn(len(word_class), dim) / dim**0.5)
        self.move, self.say = Residual(dim), Residual(dim)
        self.register_buffer("word_class", word_class)
        self.parts: list[Any] = [log_transition, log_emission]
        if compiled:
            self.parts = [torch.compile(part, dynamic=False) for part in self.parts]

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """log p of tokens [B, T] over the kept states [C, n']."""
        (classes, live), (transition, emission) = kept.shape, self.parts
        vectors = pick(self.embedding, kept.flatten()).bfloat16()
        matrix = transition(self.move(vectors), vectors).view(classes, live, classes, live)
        blocks = matrix.transpose(1, 2).reshape(classes**2, live, live)
        state_class = torch.arange(classes, device=tokens.device).repeat_interleave(live)
        table = emission(self.say(vectors), self.words.bfloat16(), self.word_class, state_class)
        found = self.word_class[tokens]
        pairs = found[:, :-1] * classes + found[:, 1:]
        mine = table.view(classes, live, -1).permute(2, 0, 1).reshape(-1, live)  # [V * C, n']
        weights = take(mine, tokens * classes + found)
        prior = Belief(torch.full((len(tokens), live), 1 / (classes * live), device=tokens.device))
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        chain = Blocks(take(blocks, pairs).float().exp())
        return score(prior, chain, Potentials.of(weights.float()), lengths)[0].sum()


def log_transition(queries: Tensor, keys: Tensor) -> Tensor:
    """The dense log p(z' | z): [S, S]."""
    return (queries @ keys.T).float().log_softmax(-1).bfloat16()


def log_emission(states: Tensor, words: Tensor, word_class: Tensor, state_class: Tensor) -> Tensor:
    """The dense log p(x | z): [S, V]."""
    allowed = word_class[None, :] == state_class[:, None]
    return (states @ words.T).float().masked_fill(~allowed, -torch.inf).log_softmax(-1).bfloat16()
