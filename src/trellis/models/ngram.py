"""Unigram and bigram baselines: counts, smoothed so that every word of the vocabulary has a probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from trellis.corpus import Split, Vocabulary
from trellis.models.base import LanguageModel

CHUNK = 1 << 20  # tokens counted at a time


class Unigram(LanguageModel):
    """p(x) = (count(x) + 1) / (N + V)."""

    family: ClassVar[str] = "unigram"

    def __init__(self, vocab: Vocabulary, log_probs: Tensor) -> None:
        self.vocab, self.log_probs = vocab, log_probs

    @classmethod
    def fit(cls, vocab: Vocabulary, split: Split) -> Unigram:
        counts = np.zeros(len(vocab))
        for chunk in chunks(split):
            counts += np.bincount(chunk, minlength=len(vocab))
        return cls(vocab, torch.from_numpy(np.log((counts + 1) / (counts + 1).sum())).float())

    def start(self, batch: int) -> int:
        return batch

    def reset(self, state: int, where: Tensor) -> int:
        return len(where)

    def score(self, tokens: Tensor, state: int, lengths: Tensor | None = None) -> tuple[Tensor, int]:
        return inside(self.log_probs[tokens], lengths), state

    def forecast(self, state: int) -> Tensor:
        return self.log_probs.expand(state, -1)

    def settings(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {"log_probs": self.log_probs}

    @classmethod
    def restore(cls, vocab: Vocabulary, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Unigram:
        return cls(vocab, tensors["log_probs"])


class Bigram(LanguageModel):
    """Interpolated Kneser-Ney: p(x | u) = max(c(u, x) - D, 0) / c(u) + D n(u) / c(u) p(x), where n(u) counts the words
    seen after u and p(x) grows with the number of words seen before x. A text begins after an <eos>."""

    family: ClassVar[str] = "bigram"

    def __init__(self, vocab: Vocabulary, lower: Tensor, weight: Tensor, keys: Tensor, kept: Tensor) -> None:
        self.vocab = vocab
        self.lower = lower  # [V]: p(x)
        self.weight = weight  # [V]: D n(u) / c(u), one where u was never seen
        self.keys, self.kept = keys, kept  # sorted u * V + x, and max(c(u, x) - D, 0) / c(u)

    @classmethod
    def fit(cls, vocab: Vocabulary, split: Split) -> Bigram:
        size = len(vocab)
        pairs = count_pairs(split, size, vocab.eos).tocoo()
        once, twice = int((pairs.data == 1).sum()), int((pairs.data == 2).sum())
        discount = once / (once + 2 * twice) if once else 0.5
        follow = np.bincount(pairs.row, weights=pairs.data, minlength=size)
        types = np.bincount(pairs.row, minlength=size)
        before = np.bincount(pairs.col, minlength=size) + 1.0
        weight = np.where(follow > 0, discount * types / np.maximum(follow, 1), 1.0)
        keys = pairs.row.astype(np.int64) * size + pairs.col
        order = np.argsort(keys)
        kept = np.maximum(pairs.data - discount, 0) / follow[pairs.row]
        arrays = (before / before.sum(), weight, keys[order], kept[order])
        return cls(vocab, *(torch.from_numpy(a) for a in arrays))

    def start(self, batch: int) -> Tensor:
        return torch.full((batch,), self.vocab.eos, device=self.device)

    def reset(self, state: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, self.vocab.eos, state[: len(where)])

    def score(self, tokens: Tensor, state: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        previous = torch.cat([state[:, None], tokens[:, :-1]], 1)
        keys = previous * len(self.vocab) + tokens
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        seen = torch.where(self.keys[place] == keys, self.kept[place], 0.0)
        log_probs = (seen + self.weight[previous] * self.lower[tokens]).log()
        ends = torch.full_like(state, tokens.shape[1]) if lengths is None else lengths
        last = torch.cat([state[:, None], tokens], 1).gather(1, ends[:, None])[:, 0]
        return inside(log_probs, lengths), last

    def forecast(self, state: Tensor) -> Tensor:
        size = len(self.vocab)
        probs = self.weight[state, None] * self.lower
        for row, word in zip(probs, state.tolist(), strict=True):
            ends = torch.tensor([word * size, (word + 1) * size], device=self.device)
            first, last = torch.searchsorted(self.keys, ends).tolist()
            row[self.keys[first:last] - word * size] += self.kept[first:last]
        return probs.log()

    def settings(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {"lower": self.lower, "weight": self.weight, "keys": self.keys, "kept": self.kept}

    @classmethod
    def restore(cls, vocab: Vocabulary, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Bigram:
        return cls(vocab, tensors["lower"], tensors["weight"], tensors["keys"], tensors["kept"])


def chunks(split: Split) -> list[np.ndarray]:
    """A split in pieces, so that a memory-mapped one is never read whole."""
    return [split.tokens[i : i + CHUNK] for i in range(0, len(split.tokens), CHUNK)]


def count_pairs(split: Split, size: int, eos: int) -> sparse.csr_array:
    """c(u, x) of neighbouring tokens, the first one after <eos>: [V, V]."""
    total = sparse.csr_array((size, size))
    last = eos
    for chunk in chunks(split):
        before = np.concatenate([[last], chunk[:-1]])
        total = total + sparse.coo_array((np.ones(len(chunk)), (before, chunk)), (size, size)).tocsr()
        last = int(chunk[-1])
    return total


def inside(log_probs: Tensor, lengths: Tensor | None) -> Tensor:
    """Zero past each sequence's end: [B, T]."""
    if lengths is None:
        return log_probs
    return log_probs.masked_fill(torch.arange(log_probs.shape[1], device=lengths.device) >= lengths[:, None], 0.0)
