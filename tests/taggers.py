"""Small HMM taggers for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corpora import vocabulary
from trellis.config import RunConfig, run_config
from trellis.corpus.lexicon import Lexicon
from trellis.corpus.tagged import Tagged
from trellis.families.hmm.parameters.base import Support
from trellis.families.hmm_tagger.config import HMMTaggerConfig
from trellis.families.hmm_tagger.fit import Texts, fit as fit_tagger
from trellis.families.hmm_tagger.model import HMMTagger
from trellis.testing.oracle import Paths
from trellis.training.fit import Job
from trellis.training.state import TrainState

NOUNS, VERBS = ["dog", "cat", "bird", "cow", "fox"], ["sees", "hears", "likes", "hits"]
CONFIG = run_config(
    {},
    [
        "model.family=hmm-tagger",
        "model.states=6",
        "train.learner=em",
        "train.epochs=4",
        "batches.tokens=256",
        "device=cpu",
    ],
)
TAGS = ["<eos>", "D", "N", "V"]


def tagger(support: Support = None, states: int = 9, seed: int = 0, **choices: Any) -> HMMTagger:
    """A tagger in float64 over the words of `corpora`, every number of it random."""
    config = HMMTaggerConfig(**choices)
    model = HMMTagger.assemble(Lexicon(vocabulary(), TAGS), config, seed, support, torch.arange(states) % len(TAGS))
    with torch.no_grad():
        model.params.tag_logits.normal_(generator=torch.Generator().manual_seed(seed))
    return model.double()


def symbol(word: int, tag: int | None = None) -> int:
    """The symbol of a word with its tag, or without."""
    return word if tag is None else word + len(vocabulary()) * (tag + 1)


def paths(model: HMMTagger, words: list[int], tags: list[int | None]) -> Paths:
    """Every path of one sentence; a word of -1 is missing, with its tag."""
    start, transition, emission = (part.detach() if isinstance(part, Tensor) else part for part in model.parts())
    of_words, of_tags = emission.dense().exp().detach().numpy(), emission.tags.exp().detach().numpy()
    potentials = np.ones((len(words), model.num_states))
    for t, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if word >= 0:
            potentials[t] *= of_words[word] * (1.0 if tag is None else of_tags[tag])
    matrix = transition.dense().detach().numpy()
    return Paths(start.numpy(), np.broadcast_to(matrix, (len(words) - 1, *matrix.shape)), potentials)


def sentences(count: int, seed: int) -> Tagged:
    """The dog sees a cat: the tag of `hits` depends on its place."""
    rng = np.random.default_rng(seed)
    words = [
        [
            *rng.choice(["the", "a"], 1),
            *rng.choice([*NOUNS, "hits"], 1),
            *rng.choice(VERBS, 1),
            "the",
            *rng.choice(NOUNS, 1),
        ]
        for _ in range(count)
    ]
    return Tagged([[str(w) for w in line] for line in words], [["D", "N", "V", "D", "N"]] * count)


def fit(config: RunConfig, corpus: Texts, folder: Path | None = None) -> tuple[HMMTagger, TrainState]:
    """A tagger, and how its training went."""
    fitted = fit_tagger(Job(config, corpus, "cpu", folder))
    assert isinstance(fitted.model, HMMTagger)
    return fitted.model, fitted.state


def texts(**changes) -> Texts:
    splits = {"train": sentences(60, 0), "valid": sentences(20, 1), "test": sentences(20, 2)}
    return replace(Texts(splits, [], "toy"), **changes)
