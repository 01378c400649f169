"""Train an HMM tagger on tagged and untagged text, combined into one split of symbols."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trellis import distributed
from trellis.config import DataConfig, RunConfig
from trellis.corpus import Corpus, Sentences, Split, load_corpus
from trellis.corpus.lexicon import Lexicon, Sentence, as_split
from trellis.corpus.tagged import Tagged, describe_splits, read_splits
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.parameters import Support
from trellis.families.hmm.parameters.support import SUPPORTS, apportion
from trellis.families.hmm_tagger.config import HMMTaggerConfig, PartlyTaggedConfig
from trellis.families.hmm_tagger.model import HMMTagger
from trellis.tasks import lm
from trellis.tasks.scores import Scores
from trellis.tasks.tagging import MATCHES, num_right, score_tags, word_counts
from trellis.training.fit import Fitted, Job, fit_steps
from trellis.training.metrics import VALID_ERROR, VALID_PPL
from trellis.training.state import TrainState

UNSEEN = 1e-3  # pseudocount of each tag in a state
FIRST = "tagged"  # the folder of the first phase, on tagged text only
NAMES = {"oov_f1": "out of vocabulary", "many": "states many to one", "one": "states one to one"}  # column names
REST = "rest"  # data.untagged: the sentences whose tags are not used


@dataclass(frozen=True)
class Texts:
    """Tagged text by split, and additional untagged sentences for training."""

    splits: dict[str, Tagged]
    untagged: Sequence[Sentence]
    description: str
    blind: bool = False  # ignore the tags of the training text
    weight: int = 1  # passes over tagged text per pass over untagged text

    def __getitem__(self, name: str) -> Tagged:
        if name not in self.splits:
            raise TrellisError(f"The tagged text has no {name} split; it has {', '.join(self.splits)}.")
        return self.splits[name]


def read(run: RunConfig, data: Any = None) -> Texts:
    """The tagged text of a run; only every n-th training sentence keeps its tags."""
    if isinstance(data, Texts):
        return data
    config = cast(PartlyTaggedConfig, run.data)
    splits = read_splits(config, data)
    whole, every = splits["train"], max(config.tagged_every, 1)
    splits["train"] = Tagged(whole.words[::every], whole.tags[::every])
    untagged = [words for number, words in enumerate(whole.words) if number % every] if config.untagged == REST else []
    if config.untagged not in ("", REST):
        corpus = load_corpus(DataConfig(config.untagged, unk=False, valid_fraction=0.0, test_fraction=0.0))
        pieces = np.split(corpus["train"].tokens, corpus["train"].sentences[1:-1])
        untagged = [corpus.vocab.decode(piece[:-1]) for piece in pieces if len(piece) > 1]
    more = f" and {sum(map(len, untagged)):,} without tags" if untagged else ""
    about = f"{describe_splits(config, splits)}{more}"
    texts = Texts(splits, untagged, about, not config.tagged_every, config.tagged_weight)
    for name in ("valid", "test"):
        texts[name]  # report a missing split before training
    return texts


def fit(job: Job) -> Fitted:
    """Train on tagged text alone, then with untagged text added."""
    config, texts = job.config, job.corpus
    torch.manual_seed(config.seed)
    tagged, rare = texts["train"], config.model.rare
    lexicon = Lexicon.choose(tagged.words, tagged.tags, rare, config.model.min_kind)
    if config.model.untagged_words:
        lexicon = lexicon.with_words(texts.untagged, config.model.untagged_words)
    split, alone = (both_ways(lexicon, given, rare) for given in (texts, replace(texts, untagged=[], weight=1)))
    with distributed.one_at_a_time():
        model = new_tagger(config, lexicon, split, alone).to(job.device)
    if texts.untagged:
        first = replace(job, corpus=replace(texts, untagged=[]), folder=job.folder and job.folder / FIRST)
        state = fit_on(alone, model, first)
        if state.interrupted:
            return Fitted(model, state)
    state = fit_on(split, model, job)
    if texts.blind:
        model.params.maximise_tags(torch.from_numpy(state_counts(model, tagged)).to(model.device), UNSEEN)
    return Fitted(model, state)


def fit_on(split: Split, model: HMMTagger, job: Job) -> TrainState:
    """Train on symbols, keeping the weights with the fewest errors on the validation text."""
    batches, texts = Sentences(split, job.config.batches.tokens, job.config.seed), job.corpus
    name, measure = (VALID_PPL, perplexity) if texts.blind else (VALID_ERROR, percent_wrong)
    return fit_steps(job, model, batches, partial(measure, model, texts["valid"]), name)


def perplexity(model: HMMTagger, tagged: Tagged) -> float:
    """Perplexity of the words alone."""
    split = as_split([model.lexicon.symbols(sentence) for sentence in tagged.words])
    return lm.evaluate(model, lm.READINGS["sentences"](split)).perplexity


def percent_wrong(model: HMMTagger, tagged: Tagged) -> float:
    """Percentage of tokens whose most probable tag is wrong."""
    return 100.0 * (1.0 - score_tags(tagged, model.tag(tagged.words)).accuracy)


def evaluate(model: HMMTagger, texts: Texts, run: RunConfig) -> Scores:
    """Accuracy on the validation and the test text."""
    found = tag_scores(model, texts)
    kinds = dict.fromkeys(name.split("_", 1)[1] for name in found)
    rows = [{"split": name} | {NAMES.get(k, k): found[f"{name}_{k}"] for k in kinds} for name in held_out(texts)]
    return Scores("tags correct, %", {"parameters": model.num_parameters(), **found}, rows, headline="test_accuracy")


def held_out(texts: Texts) -> list[str]:
    return [name for name in texts.splits if name != "train"]


def tag_scores(model: HMMTagger, texts: Texts) -> dict[str, float]:
    """Accuracy in percent on each split: overall, on words not in the tagged text (oov_f1), and with Viterbi decoding
    (viterbi). After training without tags, also the accuracy of states mapped to tags (see MATCHES)."""
    known = word_counts(texts["train"])
    seen = state_counts(model, texts["train"]) if texts.blind else None
    scores: dict[str, float] = {}
    for name in held_out(texts):
        text = texts[name]
        found = score_tags(text, model.tag(text.words), known=known)
        best = score_tags(text, model.tag(text.words, decode="viterbi"))
        shares = {"accuracy": found.accuracy, "oov_f1": found.buckets["oov"].f1, "viterbi": best.accuracy}
        if seen is not None:
            counts = state_counts(model, text)
            shares |= {how: num_right(counts, match(seen)) / text.num_tokens for how, match in MATCHES.items()}
        scores |= {f"{name}_{what}": 100.0 * share for what, share in shares.items()}
    return scores


def state_counts(model: HMMTagger, tagged: Tagged) -> np.ndarray:
    """Counts of tokens by tag and by Viterbi state given the words alone: [Y, K]. Tags unknown to the model are
    skipped."""
    number = model.lexicon.numbers
    counts = np.zeros((len(number), model.num_states))
    for tags, states in zip(tagged.tags, model.state_paths(tagged.words), strict=True):
        for tag, state in zip(tags, states, strict=True):
            if tag in number:
                counts[number[tag], state] += 1
    return counts


def both_ways(lexicon: Lexicon, texts: Texts, rare: int) -> Split:
    """Every sentence twice: unchanged, and with rare words replaced by their spelling classes."""
    tagged = texts["train"]
    tags = [None] * len(tagged) if texts.blind else tagged.tags
    pairs = [*zip(tagged.words, tags, strict=True), *((sentence, None) for sentence in texts.untagged)]
    pairs += pairs[: len(tagged)] * (texts.weight - 1)
    return as_split([lexicon.symbols(*pair, rare=hidden) for hidden in (-1, rare) for pair in pairs])


def new_tagger(config: RunConfig, lexicon: Lexicon, split: Split, tagged: Split) -> HMMTagger:
    """An untrained model of a text, with initial tags of the states as in `states_of_tags` of its tagged part."""
    size = len(lexicon.vocab)
    given = cast(HMMTaggerConfig, config.model)
    model = replace(given, states=given.states or len(lexicon.tags))
    words = Corpus(lexicon.vocab, {"train": split._replace(tokens=split.tokens % size)}, "")
    support = SUPPORTS[model.emission](words, model, config.seed)
    if isinstance(support, Partition):
        support = Partition(with_kinds(support.word_class, lexicon, model.rare), support.counts)
    tags = states_of_tags(tagged.tokens, lexicon, model, support)
    return HMMTagger.assemble(lexicon, model, config.seed, support, tags)


def with_kinds(word_class: Tensor, lexicon: Lexicon, rare: int) -> Tensor:
    """Word classes [V] in which each rare word is in the same class as its spelling class."""
    kinds = torch.from_numpy(lexicon.kinds())
    moved = (torch.tensor(lexicon.vocab.counts) <= rare) & (kinds >= 0)
    return torch.where(moved, word_class[kinds.clamp(min=0)], word_class)


def states_of_tags(symbols: np.ndarray, lexicon: Lexicon, model: HMMTaggerConfig, support: Support) -> Tensor:
    """The initial tag of each state: the states of a class are apportioned by the frequency of tags among its words."""
    size, num_tags = len(lexicon.vocab), len(lexicon.tags)
    symbols = symbols[symbols >= size]
    classes = support.word_class.numpy() if isinstance(support, Partition) else np.zeros(size, int)
    sizes = support.counts if isinstance(support, Partition) else (model.states,)
    places = classes[symbols % size] * num_tags + symbols // size - 1
    counts = np.bincount(places, minlength=len(sizes) * num_tags).reshape(len(sizes), num_tags)
    return torch.cat([tags_of_states(own, count) for own, count in zip(counts, sizes, strict=True)])


def tags_of_states(counts: np.ndarray, states: int) -> Tensor:
    """Apportion states to tags by the tags' counts [Y]: [states], the most frequent tag first."""
    chosen = np.argsort(-counts, kind="stable")[: min(states, max(1, np.count_nonzero(counts)))]
    return torch.from_numpy(np.repeat(chosen, apportion(states, np.maximum(counts[chosen], 1).tolist(), "root")))
