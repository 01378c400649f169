"""The states that can emit each word: all states, k of them [V, k], or the states of the word's class."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import Corpus
from trellis.corpus.brown import brown_classes
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig

SHARES: dict[str, Callable[[float], float]] = {"equal": lambda count: 1.0, "log": math.log1p, "root": math.sqrt}


def brown(corpus: Corpus, model: HMMConfig, seed: int) -> Partition:
    """Brown classes of words, each with its own states."""
    same = model.class_sizes == "equal"
    equal = [share(model.states, model.classes, "Brown classes")] * model.classes if same else None
    tokens = corpus["train"].tokens
    classes = brown_classes(tokens, model.classes, len(corpus.vocab), seed, alone(corpus, model.singletons))
    counts = np.bincount(classes[tokens], minlength=model.classes).tolist()
    sizes = equal or apportion(model.states, counts, model.class_sizes)
    return Partition(torch.from_numpy(classes.astype(np.int64)), sizes)


def alone(corpus: Corpus, count: int) -> tuple[int, ...]:
    """The first `count` of <eos> and the most frequent words, each of which gets its own class."""
    frequent = np.argsort(-np.array(corpus.vocab.counts), kind="stable").tolist()
    return tuple(dict.fromkeys([corpus.vocab.eos, *frequent]))[:count]


def apportion(states: int, counts: Sequence[float], rule: str) -> list[int]:
    """States per class, at least one each, in proportion to a function of the counts, by largest remainders."""
    weights = np.array([SHARES[rule](count) for count in counts])
    exact = 1 + weights / max(weights.sum(), 1e-300) * (states - len(counts))
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: states - int(sizes.sum())]] += 1
    return sizes.tolist()


def cloned(corpus: Corpus, model: HMMConfig, seed: int) -> Partition:
    """Disjoint states for every word, so that a state emits a single word."""
    words = len(corpus.vocab)
    return Partition(torch.arange(words), [share(model.states, words, "words")] * words)


def uniform(corpus: Corpus, model: HMMConfig, seed: int) -> Tensor:
    """k distinct random states for every word, [V, k]. A state without any word would be unreachable, so it replaces a
    state that has several."""
    words, k = len(corpus.vocab), model.states_per_word
    if words * model.states_per_word < model.states:
        most = words * k
        raise TrellisError(f"{words} words with {k} states each cannot use {model.states} states; at most {most}.")
    generator = torch.Generator().manual_seed(seed)
    sets = torch.stack([torch.randperm(model.states, generator=generator)[:k] for _ in range(words)])
    uses = sets.flatten().bincount(minlength=model.states)
    for state in (uses == 0).nonzero().flatten().tolist():
        place = int((uses[sets] > 1).flatten().nonzero()[0])
        uses[sets.view(-1)[place]] -= 1
        sets.view(-1)[place], uses[state] = state, 1
    return sets


def share(states: int, groups: int, what: str) -> int:
    """The equal number of states per group."""
    if groups < 1 or states < groups or states % groups:
        nearest = max(1, round(states / max(groups, 1))) * max(groups, 1)
        raise TrellisError(f"{states} states cannot be divided among {groups} {what}; try model.states = {nearest}.")
    return states // groups


SUPPORTS: dict[str, Callable[[Corpus, HMMConfig, int], Tensor | Partition | None]] = {
    "full": lambda corpus, model, seed: None,
    "brown": brown,
    "uniform": uniform,
    "cloned": cloned,
}
