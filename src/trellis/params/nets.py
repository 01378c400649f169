"""Small nets that turn embeddings into parameters."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor, nn

BUCKETS = 1 << 15
SHORTEST, LONGEST = 2, 5  # characters of a piece of a word


class Residual(nn.Module):
    """x -> LayerNorm(x + relu(B relu(A x))), `depth` times: [..., d] -> [..., d]."""

    def __init__(self, dim: int, depth: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout)
            )
            for _ in range(depth)
        )
        self.scales = nn.Parameter(torch.ones(depth, dim))
        self.shifts = nn.Parameter(torch.zeros(depth, dim))

    def forward(self, x: Tensor) -> Tensor:
        for layer, scale, shift in zip(self.layers, self.scales, self.shifts, strict=True):
            x = nn.functional.layer_norm(x + layer(x), x.shape[-1:]) * scale + shift
        return x


class Spelling(nn.Module):
    """The mean embedding of a word's pieces, all its runs of 2 to 5 characters, hashed: -> [V, d]."""

    pieces: Tensor  # of all words, one after the other
    begins: Tensor  # [V]: where each word's begin

    def __init__(self, words: Sequence[str], dim: int, spread: float) -> None:
        super().__init__()
        spelled = [pieces_of(word) for word in words]
        begins = torch.tensor([0, *map(len, spelled)]).cumsum(0)[:-1]
        self.register_buffer("pieces", torch.tensor([piece for word in spelled for piece in word]), persistent=False)
        self.register_buffer("begins", begins, persistent=False)
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean")
        nn.init.normal_(self.bag.weight, std=spread)

    def forward(self) -> Tensor:
        return self.bag(self.pieces, self.begins)


def pieces_of(word: str) -> list[int]:
    """The hashed pieces of a word between its brackets."""
    text = f"<{word}>"
    runs = (text[i : i + n] for n in range(SHORTEST, LONGEST + 1) for i in range(len(text) - n + 1))
    return [crc32(run.encode()) % BUCKETS for run in runs]
