"""Small made-up corpora for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trellis.corpus import Split, Vocabulary
from trellis.emissions import Partition
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM

WORDS = ["<eos>", "the", "cat", "dog", "sees", "a", "<unk>"]


CLASSES = torch.tensor([0, 1, 2, 2, 1, 0, 2])  # of the words
STATES = 9  # of the supports
SUPPORTS: dict[str, Any] = {
    "full": None,
    "sets": torch.stack([torch.randperm(STATES, generator=torch.Generator().manual_seed(w))[:4] for w in range(7)]),
    "even": Partition(CLASSES, [3, 3, 3]),
    "uneven": Partition(CLASSES, [2, 4, 3]),
}


def vocabulary() -> Vocabulary:
    return Vocabulary(WORDS, [40, 30, 20, 10, 8, 5, 1])


def split(sentences: int = 60, seed: int = 0) -> Split:
    """Random sentences of 1 to 6 words, every 10 of them a document."""
    rng = np.random.default_rng(seed)
    lines = [np.append(rng.integers(1, len(WORDS), rng.integers(1, 7)), 0) for _ in range(sentences)]
    ends = np.cumsum([0] + [len(line) for line in lines])
    return Split(np.concatenate(lines).astype(np.int32), ends, np.append(ends[:-1:10], ends[-1]))


def hmm(states: int = 3, carry: bool = False, seed: int = 0) -> HMM:
    """An HMM in float64, its parameters fixed."""
    return HMM.new(vocabulary(), states, carry, seed).to(torch.float64).requires_grad_(False)


def fhmm(
    sizes: tuple[int, ...] = (2, 3), bound: str = "tilted", dim: int = 0, seed: int = 0, combine: str = "log-linear"
) -> FHMM:
    """A factorial HMM in float64."""
    return FHMM.new(vocabulary(), sizes, bound, dim, seed, combine).to(torch.float64)
