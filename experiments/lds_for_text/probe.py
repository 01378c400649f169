"""The local probe: a small network that predicts the tag of a token from its vector alone."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN, COMMON = 25, 50  # hidden units (0: a linear classifier); number of frequent words that get their majority tag
EPOCHS, BATCH, RATE = 12, 256, 0.005
NUMBER = "NUM"
_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")


def normal_form(word: str) -> str:
    """The word with every number replaced by NUM."""
    return _DIGITS.sub(NUMBER, word)


def is_punctuation(word: str) -> bool:
    """Whether it has neither letters nor digits."""
    return not any(unicodedata.category(letter)[0] in "LN" for letter in word)


def majority_tags(words: Iterable[str], tags: Iterable[str], common: int = COMMON) -> dict[str, str]:
    """The majority tags of punctuation, numbers and the most frequent words."""
    pairs = Counter((normal_form(word), tag) for word, tag in zip(words, tags, strict=True))
    counts: Counter[str] = Counter()
    best: dict[str, str] = {}
    for (word, tag), count in pairs.most_common():
        best.setdefault(word, tag)
        counts[word] += count
    commonest = {word for word, _ in counts.most_common(common)}
    return {word: tag for word, tag in best.items() if word in commonest or word == NUMBER or is_punctuation(word)}


@dataclass
class Probe:
    """A network over standardised vectors, and the words whose tag is looked up instead."""

    known: dict[str, str]
    tags: list[str]
    shift: Tensor  # [h]
    scale: Tensor  # [h]
    network: nn.Sequential

    @torch.no_grad()
    def predict(self, vectors: Tensor, words: Sequence[str]) -> list[str]:
        """The tags of tokens: vectors [N, h] and their words."""
        best = self.network((vectors.to(self.shift) - self.shift) / self.scale).argmax(1).tolist()
        looked_up = (self.known.get(normal_form(word)) for word in words)
        return [tag or self.tags[i] for tag, i in zip(looked_up, best, strict=True)]

    def right(self, vectors: Tensor, words: Sequence[str], tags: Sequence[str]) -> np.ndarray:
        """Which tokens are tagged correctly: [N] bool."""
        return np.array(self.predict(vectors, words)) == np.array(tags)


def fit_probe(
    vectors: Tensor,
    words: Sequence[str],
    tags: Sequence[str],
    hidden: int = HIDDEN,
    common: int = COMMON,
    seed: int = 0,
) -> Probe:
    """Train on tokens with vectors [N, h], except those whose tag is looked up."""
    known, tag_set = majority_tags(words, tags, common), sorted(set(tags))
    index = {tag: i for i, tag in enumerate(tag_set)}
    kept = torch.tensor([normal_form(word) not in known for word in words], device=vectors.device)
    kept |= ~kept.any()  # unless that would be all of them
    target = torch.tensor([index[tag] for tag in tags], device=vectors.device)[kept]
    inputs = vectors[kept].float()
    shift, scale = inputs.mean(0), inputs.std(0).clamp(min=1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = [nn.Linear(vectors.shape[1], hidden), nn.Tanh()] if hidden else []
        network = nn.Sequential(*first, nn.Linear(hidden or vectors.shape[1], len(tag_set))).to(vectors.device)
        descend(network, (inputs - shift) / scale, target)
    return Probe(known, tag_set, shift, scale, network)


def descend(network: nn.Module, inputs: Tensor, target: Tensor) -> None:
    """Adam on shuffled batches, with a learning rate that falls to zero."""
    steps = EPOCHS * -(-len(inputs) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(inputs)).to(inputs.device).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), target[batch]).backward()
            optimizer.step()
            schedule.step()
