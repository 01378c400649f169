"""Which states may emit a word: support sets [V, k], so that only k states are live at each token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trellis.config import ModelConfig
from trellis.corpus import Corpus
from trellis.corpus.brown import brown_clusters
from trellis.errors import TrellisError


def by_class(assignment: np.ndarray, live: int) -> Tensor:
    """All words of class c share the states c * live, ..., c * live + live - 1."""
    return torch.from_numpy(assignment.astype(np.int64))[:, None] * live + torch.arange(live)


def brown(corpus: Corpus, model: ModelConfig, seed: int) -> Tensor:
    """Classes of words that occur in the same places, each with an equal share of the states."""
    live = share(model.states, model.classes, "Brown classes")
    clustering = brown_clusters(corpus["train"].tokens, model.classes, vocab_size=len(corpus.vocab), seed=seed)
    return by_class(clustering.assignment, live)


def cloned(corpus: Corpus, model: ModelConfig, seed: int) -> Tensor:
    """Every word has states of its own: a state emits one word."""
    return by_class(np.arange(len(corpus.vocab)), share(model.states, len(corpus.vocab), "words"))


def uniform(corpus: Corpus, model: ModelConfig, seed: int) -> Tensor:
    """Every word has model.live states drawn at random, no two alike."""
    if not 1 <= model.live <= model.states:
        raise TrellisError(f"model.live is {model.live}: each word needs between 1 and model.states = {model.states}.")
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randperm(model.states, generator=generator)[: model.live] for _ in corpus.vocab.words)
    return torch.stack(list(draws))


def share(states: int, groups: int, what: str) -> int:
    """States of each group, all alike."""
    if groups < 1 or states < groups or states % groups:
        nearest = max(1, round(states / max(groups, 1))) * max(groups, 1)
        raise TrellisError(f"{states} states cannot be shared evenly by {groups} {what}; try model.states = {nearest}.")
    return states // groups


SUPPORTS: dict[str, Callable[[Corpus, ModelConfig, int], Tensor | None]] = {
    "full": lambda corpus, model, seed: None,
    "brown": brown,
    "uniform": uniform,
    "cloned": cloned,
}
