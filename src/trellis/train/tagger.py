"""Train a POS HMM: tagged text, and text without tags, become one split of symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trellis.config import DataConfig, ModelConfig, RunConfig, choose
from trellis.corpus import Corpus, Sentences, Split, load_corpus
from trellis.corpus.lexicon import Lexicon, Sentence, as_split
from trellis.corpus.tagged import Tagged, load_tagged
from trellis.emissions import Partition
from trellis.families.tag_hmm.model import TagHMM
from trellis.learning.base import Learner
from trellis.learning.em import EMLearner
from trellis.learning.gradient import GradientLearner
from trellis.params import Support
from trellis.params.support import SUPPORTS, apportion
from trellis.tasks.lm import READINGS, evaluate
from trellis.tasks.tagging import MATCHES, num_right, score_tags, state_counts, word_counts
from trellis.train.checkpoint import BEST, load_weights
from trellis.train.loop import fit
from trellis.train.metrics import VALID_ERROR, VALID_PPL
from trellis.train.state import TrainState

LEARNERS: dict[str, Callable[..., Learner]] = {"gradient": GradientLearner, "em": EMLearner}
UNSEEN = 1e-3  # tokens of each tag that a state is taken to have had besides those that it has
FIRST = "tagged"  # the folder of the training that comes before text without tags is added
REST = "rest"  # data.untagged: the sentences whose tags are not used


@dataclass(frozen=True)
class Texts:
    """Tagged text by split, and more sentences to learn from without tags."""

    splits: dict[str, Tagged]
    untagged: Sequence[Sentence]
    description: str
    blind: bool = False  # the tags of the training text are not for learning
    weight: int = 1  # times that tagged text is read while the other is read once

    def __getitem__(self, name: str) -> Tagged:
        return self.splits[name]


def load_texts(config: DataConfig) -> Texts:
    """The data set that `config` names; the tags of one training sentence in so many are for learning."""
    splits = {name: load_tagged(config.source, name).in_iob2() for name in ("train", "valid", "test")}
    whole, every = splits["train"], max(config.tagged_every, 1)
    splits["train"] = Tagged(whole.words[::every], whole.tags[::every])
    untagged = [words for number, words in enumerate(whole.words) if number % every] if config.untagged == REST else []
    if config.untagged not in ("", REST):
        corpus = load_corpus(DataConfig(source=config.untagged, unk=False))
        pieces = np.split(corpus["train"].tokens, corpus["train"].sentences[1:-1])
        untagged = [corpus.vocab.decode(piece[:-1]) for piece in pieces if len(piece) > 1]
    sizes = " / ".join(f"{split.num_tokens:,}" for split in splits.values())
    more = f" and {sum(map(len, untagged)):,} without tags" if untagged else ""
    about = f"{config.source}: {sizes} tokens (train / valid / test){more}"
    return Texts(splits, untagged, about, not config.tagged_every, config.tagged_weight)


def train_tagger(
    config: RunConfig, texts: Texts, device: str, folder: Path, resume: bool = False
) -> tuple[TagHMM, TrainState]:
    """Fit a POS HMM, on tagged text alone before that without tags is added."""
    torch.manual_seed(config.seed)
    tagged, rare = texts["train"], config.model.rare
    lexicon = Lexicon.choose(tagged.words, tagged.tags, texts.untagged, rare, config.model.common)
    split = both_ways(lexicon, texts, rare)
    model = new_tagger(config, lexicon, split).to(device)
    if texts.untagged:
        first = replace(texts, untagged=[])
        state = fit_on(both_ways(lexicon, first, rare), model, config, first, folder / FIRST, resume)
        if state.outcome == "interrupted":
            return model, state
    state = fit_on(split, model, config, texts, folder, resume)
    if texts.blind:
        model.params.maximise_tags(torch.from_numpy(state_counts(model, tagged)).to(model.device), UNSEEN)
    return model, state


def fit_on(split: Split, model: TagHMM, config: RunConfig, texts: Texts, folder: Path, resume: bool) -> TrainState:
    """Learn from symbols; the model then has the weights that made fewest errors on the validation text."""
    make_learner = choose(LEARNERS, config.train.learner, "train.learner")
    batches = Sentences(split, config.batches.tokens, config.seed)
    learner = make_learner(model, config.train, config.train.total_steps(len(batches)))
    name, measure = (VALID_PPL, perplexity) if texts.blind else (VALID_ERROR, percent_wrong)
    evaluate = partial(measure, model, texts["valid"])
    state = fit(learner, batches, evaluate, config.train, folder, resume, measure=name)
    if (folder / BEST).exists():
        model.load_state_dict(load_weights(folder / BEST, model.device))
    model.eval()
    return state


def perplexity(model: TagHMM, tagged: Tagged) -> float:
    """Of the words alone."""
    split = as_split([model.lexicon.symbols(sentence) for sentence in tagged.words])
    return evaluate(model, READINGS["sentences"](split)).perplexity


def percent_wrong(model: TagHMM, tagged: Tagged) -> float:
    """Tokens whose most probable tag is not theirs."""
    return 100.0 * (1.0 - score_tags(tagged, model.tag(tagged.words)).accuracy)


def tag_scores(model: TagHMM, texts: Texts) -> dict[str, float]:
    """Accuracy in percent: of each split, of its words that the tagged text has not (oov_f1), and of the best paths of
    states and tags (viterbi); without tags in training also of states that stand for a tag each (see MATCHES)."""
    known = word_counts(texts["train"])
    seen = state_counts(model, texts["train"]) if texts.blind else None
    scores: dict[str, float] = {}
    for name in ("valid", "test"):
        text = texts[name]
        found = score_tags(text, model.tag(text.words), known=known)
        best = score_tags(text, model.tag(text.words, "viterbi"))
        shares = {"accuracy": found.accuracy, "oov_f1": found.buckets["oov"].f1, "viterbi": best.accuracy}
        if seen is not None:
            counts = state_counts(model, text)
            shares |= {how: num_right(counts, match(seen)) / text.num_tokens for how, match in MATCHES.items()}
        scores |= {f"{name}_{what}": 100.0 * share for what, share in shares.items()}
    return scores


def both_ways(lexicon: Lexicon, texts: Texts, rare: int) -> Split:
    """Every sentence twice: with its rare words as they are, and with their kinds instead."""
    tagged = texts["train"]
    tags = [None] * len(tagged) if texts.blind else tagged.tags
    pairs = [*zip(tagged.words, tags, strict=True), *((sentence, None) for sentence in texts.untagged)]
    pairs += pairs[: len(tagged)] * (texts.weight - 1)
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
    return torch.from_numpy(np.repeat(chosen, apportion(states, np.maximum(counts[chosen], 1).tolist(), "root")))
