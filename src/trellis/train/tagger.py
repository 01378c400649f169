"""Train a POS HMM: tagged text, and text without tags, become one split of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trellis.config import ModelConfig, RunConfig
from trellis.corpus import Corpus, Sentences, Split
from trellis.corpus.lexicon import Lexicon, Sentence, as_split
from trellis.corpus.tagged import Tagged
from trellis.emissions import Partition
from trellis.learning.base import Learner
from trellis.learning.em import EMLearner
from trellis.learning.gradient import GradientLearner
from trellis.models.tag_hmm import TagHMM
from trellis.params import Support
from trellis.params.support import SUPPORTS, apportion
from trellis.train.checkpoint import BEST, load_weights
from trellis.train.loop import fit
from trellis.train.run import choose, choose_device
from trellis.train.state import TrainState

LEARNERS: dict[str, type[Learner]] = {"gradient": GradientLearner, "em": EMLearner}


def train_tagger(
    config: RunConfig,
    tagged: Tagged,
    valid: Tagged,
    folder: Path,
    untagged: Sequence[Sentence] = (),
    resume: bool = False,
) -> tuple[TagHMM, TrainState]:
    """Fit a POS HMM, and return it with the weights that made fewest errors on the validation text."""
    torch.manual_seed(config.seed)
    make_learner = choose(LEARNERS, config.train.learner, "train.learner")
    lexicon = Lexicon.choose(tagged.words, tagged.tags, untagged, config.model.rare, config.model.common)
    split = both_ways(lexicon, tagged, untagged, config.model.rare)
    model = new_tagger(config, lexicon, split).to(choose_device(config.device))
    batches = Sentences(split, config.batches.tokens, config.seed)
    learner = make_learner(model, config.train, config.train.total_steps(len(batches)))
    state = fit(learner, batches, lambda: percent_wrong(model, valid), config.train, folder, resume)
    if (folder / BEST).exists():
        model.load_state_dict(load_weights(folder / BEST, model.device))
    return model.eval(), state


def percent_wrong(model: TagHMM, tagged: Tagged) -> float:
    """Tokens whose most probable tag is not theirs."""
    found = model.tag(tagged.words)
    wrong = sum(a != b for pair in zip(found, tagged.tags, strict=True) for a, b in zip(*pair, strict=True))
    return 100.0 * wrong / tagged.num_tokens


def both_ways(lexicon: Lexicon, tagged: Tagged, untagged: Sequence[Sentence], rare: int) -> Split:
    """Every sentence twice: with its rare words as they are, and with their kinds instead."""
    pairs = [*zip(tagged.words, tagged.tags, strict=True), *((sentence, None) for sentence in untagged)]
    return as_split([lexicon.symbols(*pair, rare=hidden) for hidden in (0, rare) for pair in pairs])


def new_tagger(config: RunConfig, lexicon: Lexicon, split: Split) -> TagHMM:
    """An untrained model whose states are shared out among the tags that their words have."""
    size = len(lexicon.vocab)
    model = replace(config.model, states=config.model.states or len(lexicon.tags))
    words = Corpus(lexicon.vocab, {"train": split._replace(tokens=split.tokens % size)}, "")
    support = choose(SUPPORTS, model.emission, "model.emission")(words, model, config.seed)
    if isinstance(support, Partition):
        support = Partition(with_kinds(support.word_class, lexicon, model.rare), support.counts)
    return TagHMM.assemble(lexicon, model, config.seed, support, states_of_tags(split.tokens, lexicon, model, support))


def with_kinds(word_class: Tensor, lexicon: Lexicon, rare: int) -> Tensor:
    """The classes of words, rare words moved into that of their kind: [V]."""
    kinds = torch.from_numpy(lexicon.kinds())
    moved = (torch.tensor(lexicon.vocab.counts) <= rare) & (kinds >= 0)
    return torch.where(moved, word_class[kinds.clamp(min=0)], word_class)


def states_of_tags(symbols: np.ndarray, lexicon: Lexicon, model: ModelConfig, support: Support) -> Tensor:
    """The tag that each state begins with: the commoner a tag among the words of a class, the more of its states."""
    size, num_tags = len(lexicon.vocab), len(lexicon.tags)
    symbols = symbols[symbols >= size]
    classes = support.word_class.numpy() if isinstance(support, Partition) else np.zeros(size, int)
    sizes = support.counts if isinstance(support, Partition) else (model.states,)
    places = classes[symbols % size] * num_tags + symbols // size - 1
    counts = np.bincount(places, minlength=len(sizes) * num_tags).reshape(len(sizes), num_tags)
    return torch.cat([tags_of_states(own, count) for own, count in zip(counts, sizes, strict=True)])


def tags_of_states(counts: np.ndarray, states: int) -> Tensor:
    """Tags [states] out of their counts [Y]: the commonest ones, more states for the commoner."""
    chosen = np.argsort(-counts, kind="stable")[: min(states, max(1, np.count_nonzero(counts)))]
    return torch.from_numpy(np.repeat(chosen, apportion(states, counts[chosen].tolist(), "root")))
