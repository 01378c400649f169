"""Small networks that map embeddings to parameters."""

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor, nn

from trellis.kernels.norm import add_norm
from trellis.kernels.rows import rectified, with_rectified

BUCKETS = 1 << 15
SHORTEST, LONGEST = 2, 5  # character n-gram lengths


class Residual(nn.Module):
    """x -> LayerNorm(x + relu(B relu(A x))), `depth` times, in the precision of x: [n, d] -> [n, d]."""

    def __init__(self, dim: int, depth: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.scales = nn.Parameter(torch.ones(depth, dim))
        self.shifts = nn.Parameter(torch.zeros(depth, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for inner, outer, scale, shift in zip(self.inner, self.outer, self.scales, self.shifts, strict=True):
            if self.dropout.p and self.training:
                y = self.dropout(through(outer, self.dropout(through(inner, x))))
            else:
                x, y = with_rectified(x, *weights_of(inner), *weights_of(outer))
            x = add_norm(x, y, scale, shift)
        return x


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """relu(W x + b)."""
    return rectified(x, *weights_of(layer))


def weights_of(layer: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Linear)
    return layer.weight, layer.bias


class Spelling(nn.Module):
    """The mean embedding of a word's hashed character n-grams, of 2 to 5 characters: -> [V, d]."""

    pieces: Tensor  # of all words, concatenated
    begins: Tensor  # [V]: offset of each word's n-grams

    def __init__(self, words: Sequence[str], dim: int, init_std: float) -> None:
        super().__init__()
        spelled = [pieces_of(word) for word in words]
        begins = torch.tensor([0, *map(len, spelled)]).cumsum(0)[:-1]
        self.register_buffer("pieces", torch.tensor([piece for word in spelled for piece in word]), persistent=False)
        self.register_buffer("begins", begins, persistent=False)
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean")
        nn.init.normal_(self.bag.weight, std=init_std)

    def forward(self) -> Tensor:
        return self.bag(self.pieces, self.begins)


def pieces_of(word: str) -> list[int]:
    """The hashed character n-grams of a word enclosed in angle brackets."""
    text = f"<{word}>"
    runs = (text[i : i + n] for n in range(SHORTEST, LONGEST + 1) for i in range(len(text) - n + 1))
    return [crc32(run.encode()) % BUCKETS for run in runs]
