"""Compare models on one text: perplexity, its breakdown, and the significance of differences."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from trellis.corpus import Corpus, Split, Vocabulary
from trellis.corpus.cache import trust_source
from trellis.corpus.tokenize import EOS, UNK
from trellis.errors import TrellisError
from trellis.learning.base import GradientModel
from trellis.models.base import LanguageModel
from trellis.models.files import load
from trellis.registry import find_family
from trellis.storage import as_path
from trellis.tasks.bands import Band, by_frequency, by_position
from trellis.tasks.bootstrap import Difference, paired_bits, paired_bootstrap, resampled_units
from trellis.tasks.dynamic import Adaptation, Dynamic
from trellis.tasks.lm import Evaluation, in_text_order, load_split, reading_of, split_of
from trellis.tasks.mixture import cache_log_probs, fit_cache, fit_weights, interpolate
from trellis.tasks.spelling import Spelling

Model = LanguageModel | str | PathLike[str]

INTERPOLATED, CACHED = "interpolated", "interpolated with a cache"
BEFORE, AFTER = 12, 3  # tokens of context shown before and after a word


class Text(NamedTuple):
    """A split encoded with a vocabulary."""

    vocab: Vocabulary
    split: Split


class Scored(NamedTuple):
    """A model's log-probability of every token of a text, in text order."""

    model: str
    family: str
    order: str  # the order of its training batches: the state is carried over (streams, documents) or reset (sentences)
    log_probs: np.ndarray  # [tokens]
    text: Text
    weights: np.ndarray | None = None  # of the other models, and of the cache, if this is their mixture
    cache_decay: float | None = None
    dynamic: Adaptation | None = None


class Entry(NamedTuple):
    """A model to compare. `dynamic` is the dynamic evaluation of the model; if None, the model scores texts with its
    trained weights."""

    name: str
    model: LanguageModel
    dynamic: tuple[Dynamic, Adaptation] | None = None

    @property
    def order(self) -> str:
        return self.model.about.get("order", "sentences")

    @property
    def family(self) -> str:
        """The name of the model in tables. If the model has a teacher, its name is included."""
        teacher = self.model.about.get("teacher")
        return f"{self.model.name} taught by {teacher['family']}" if teacher else self.model.name

    def log_probs(self, split: Split) -> np.ndarray:
        """log p of every token, in text order: [tokens]."""
        if self.dynamic is None:
            return in_text_order(self.model, reading_of(self.model)(split))
        adapted, how = self.dynamic
        return adapted.log_probs(split, how)


@dataclass
class Context:
    """A word on which one model is much better than another."""

    text: str  # the surrounding sentence, with the word in [brackets]
    log_prob: float  # under the worse model
    other: float  # under the better model


@dataclass
class Against:
    """A model compared with the first one."""

    perplexity: Difference | None  # None if the vocabularies differ
    losses: list[Context]  # where it is worst relative to the first model
    gains: list[Context]  # where it is best relative to the first model
    open_bits_per_character: Difference | None = None  # None unless the vocabulary is open


@dataclass
class Row:
    """The results of one model over all tokens, including <eos> and <unk>."""

    model: str
    family: str
    order: str
    tokens: int
    log_likelihood: float
    perplexity: float
    by_frequency: list[Band]
    by_position: list[Band]
    against_first: Against | None = None
    weights: list[float] | None = None  # for a mixture: of the models, then of the cache if there is one
    cache_decay: float | None = None  # of the unigram cache in this mixture
    dynamic: Adaptation | None = None  # how the weights follow the text, in dynamic evaluation
    unknown: float = 0.0  # share of <unk> among the tokens
    unk_is_trained: bool = True  # whether the training text had any <unk>
    characters: int | None = None  # of the original text
    bits_per_character: float | None = None
    open_bits_per_character: float | None = None  # with unknown words spelled out


def compare(
    models: Sequence[Model] | Mapping[str, Model],
    data: Any = None,
    split: str | None = None,
    interpolate: bool = False,
    contexts: int = 5,
    device: str = "cpu",
    open_vocabulary: bool = False,
    ngram: int = 0,
    cache: bool = False,
    dynamic: bool = False,
) -> list[Row]:
    """Compare language models on a text. Returns a row per model; some options add rows.

    Mixture weights, the decay of the cache and the settings of dynamic evaluation are chosen on the validation split.

    Parameters
    ----------
    models
        Models, model files or run folders, or a dict of these by name.
    data : str, path, list or Corpus
        The text, as in `evaluate`.
    split
        The split of the corpus; by default the test split, or all of a text that has no splits.
    interpolate
        Add the linear mixture of all models.
    contexts
        The number n of examples per model: the n words, shown in their sentences, on which it is worst relative to the
        first model, and the n on which it is best.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.
    open_vocabulary
        Allow different vocabularies: unknown words are spelled out by a character model.
    ngram
        Add an n-gram model of this order, estimated from the training text of the first model; 0: none. If the model
        was trained on a text from Python, pass the Corpus as `data`.
    cache
        Add the linear mixture of all models and a unigram cache, in which recent words are more probable.
    dynamic
        Add each model under dynamic evaluation, in which its weights adapt to the text. Models without a gradient, such
        as n-gram models, are skipped.

    Examples
    --------
    >>> models = [trellis.train(["a b", "b a"] * 20, family=family).model for family in ("unigram", "bigram")]
    >>> first, second = trellis.compare(models, ["a b", "b a"] * 20)
    >>> second.perplexity < first.perplexity, second.against_first.perplexity.significant
    (True, True)
    """
    data = list(data) if isinstance(data, Iterator) else data
    if isinstance(data, str | PathLike):
        trust_source(str(data))
    entries = with_names(models, device)
    if not entries:
        raise TrellisError("There is nothing to compare; pass at least one model.")
    learning, mixes = [entry for entry in entries if isinstance(entry.model, GradientModel)], interpolate or cache
    if dynamic and not learning:
        raise TrellisError("No dynamic evaluation: none of the models has a gradient.")
    if interpolate and len(entries) + bool(ngram) + dynamic < 2:
        raise TrellisError("Nothing to interpolate; pass at least two models.")
    needed = [split, "valid"] if mixes else [split] if ngram else []
    for name in needed:
        split_of(entries[0].model, data, name)  # raises before any work if there is no such split
    if ngram:
        entries.append(ngram_of(entries[0].model, ngram, data))
    entries += [adapted(entry, data) for entry in learning] if dynamic else []
    scored = score_text(entries, data, split, open_vocabulary and not mixes)
    scored += mixtures(scored, score_text(entries, data, "valid"), interpolate, cache) if mixes else []
    spelling = spelling_of(entries[0].model) if open_vocabulary else None
    rows = [describe(one, spelling) for one in scored]
    for row, one in zip(rows[1:], scored[1:], strict=True):
        row.against_first = against(scored[0], one, contexts * (one.weights is None), spelling)
    return rows


def mixtures(scored: list[Scored], valid: list[Scored], interpolated: bool, cached: bool) -> list[Scored]:
    """The mixtures of models scored on a text, with weights fitted to their scores on the validation split."""
    text, given, held_out = scored[0].text, stack(scored), stack(valid)
    orders = {one.order for one in scored}
    order = orders.pop() if len(orders) == 1 else "mixed"
    found = []
    if interpolated:
        weights = fit_weights(held_out)
        found.append(Scored(INTERPOLATED, INTERPOLATED, order, interpolate(given, weights), text, weights))
    if cached:
        words = len(text.vocab)
        decay, weights = fit_cache(held_out, valid[0].text.split.tokens, words)
        every = np.vstack([given, cache_log_probs(text.split.tokens, decay, words)])
        found.append(Scored(CACHED, INTERPOLATED, order, interpolate(every, weights), text, weights, decay))
    return found


def with_names(models: Sequence[Model] | Mapping[str, Model], device: str) -> list[Entry]:
    """The models with their names: the given names, else those of their files or families. Equal families are
    numbered."""
    given = list(models.values() if isinstance(models, Mapping) else models)
    families = [one.name for one in given if isinstance(one, LanguageModel)]
    found, seen = [], Counter[str]()
    for one in given:
        if isinstance(one, LanguageModel):
            seen[one.name] += 1
            number = f" {seen[one.name]}" if families.count(one.name) > 1 else ""
            found.append(Entry(one.name + number, one))
        else:
            found.append(Entry(str(one), load(as_path(one), LanguageModel, device)))
    names = models if isinstance(models, Mapping) else [entry.name for entry in found]
    return [entry._replace(name=str(name)) for entry, name in zip(found, names, strict=True)]


def adapted(entry: Entry, data: Any) -> Entry:
    """A model under dynamic evaluation, with the rate and decay that are best on the validation split."""
    model = entry.model
    training, valid = training_text(model, data), split_of(model, data, "valid")
    adapting = Dynamic(model, training)
    how = adapting.choose(valid)
    return Entry(f"{entry.name}, dynamic", model, (adapting, how))


def training_text(model: LanguageModel, data: Any) -> Split:
    """The training text that the model records or, if it records none, the training split of `data`, which must be a
    Corpus."""
    if "data" not in model.about and isinstance(data, Corpus) and "train" in data.splits:
        return split_of(model, data, "train")
    if "data" not in model.about:
        raise TrellisError(
            "The model does not record its training text; in Python, pass a Corpus with a training split as `data`."
        )
    return load_split(model, None, "train")


def ngram_of(model: LanguageModel, order: int, data: Any) -> Entry:
    """An n-gram model of a model's training text, and its name. The n-gram model reads texts in the same way as the
    model."""
    other = find_family("ngram").load("model").fit(model.vocab, training_text(model, data), order)
    other.about = {name: value for name, value in model.about.items() if name != "teacher"}
    return Entry(f"{other.name} of the training text", other)


def spelling_of(model: LanguageModel) -> Spelling:
    """The character model of a model's training text, or of its vocabulary if the text is not recorded."""
    has_text = model.about.get("data", {}).get("source", "-") != "-"
    return Spelling.of_training_text(model.vocab, load_split(model, None, "train") if has_text else None)


def score_text(entries: Sequence[Entry], data: Any, split: str | None, open_vocabulary: bool = False) -> list[Scored]:
    """The log-probabilities of a text under every model. Unless the vocabulary is open, all models must have the same
    words."""
    scored: list[Scored] = []
    for entry in entries:
        text = Text(entry.model.vocab, split_of(entry.model, data, split))
        if scored:
            require = require_same_characters if open_vocabulary else require_same
            require(scored[0].text, text, scored[0].model, entry.name)
        how = None if entry.dynamic is None else entry.dynamic[1]
        log_probs = entry.log_probs(text.split)
        scored.append(Scored(entry.name, entry.family, entry.order, log_probs, text, dynamic=how))
    return scored


def require_same_characters(first: Text, other: Text, first_path: str, path: str) -> None:
    """Raise if two texts differ in their number of characters."""
    sizes = first.split.num_characters, other.split.num_characters
    if sizes[0] != sizes[1]:
        advice = "choose one for both with --data and --split all (in Python, data and split)"
        raise TrellisError(f"{first_path} and {path} were trained on different texts; {advice}.")


def require_same(first: Text, other: Text, first_path: str, path: str) -> None:
    """Raise if two models do not share vocabulary and text."""
    words = [(v.tokenizer, v.lower, v.digits, set(v.words)) for v in (first.vocab, other.vocab)]
    if words[0] != words[1]:
        raise TrellisError(
            f"{first_path} and {path} differ in vocabulary ({len(first.vocab):,} and {len(other.vocab):,} words): "
            "their perplexities cannot be compared; --open (in Python, open_vocabulary) compares bits per character."
        )
    ids = np.array([first.vocab.index[word] for word in other.vocab.words])
    if not np.array_equal(first.split.tokens, ids[other.split.tokens]):
        advice = "choose one for both with --data and --split all (in Python, data and split)"
        raise TrellisError(f"{first_path} and {path} were trained on different texts; {advice}.")


def stack(scored: Sequence[Scored]) -> np.ndarray:
    return np.stack([one.log_probs for one in scored])


def describe(scored: Scored, spelling: Spelling | None = None) -> Row:
    """The results of one model."""
    (vocab, split), log_probs = scored.text, scored.log_probs
    spelled = None if spelling is None else float(spelled_log_probs(scored.text, spelling).sum())
    result = Evaluation(float(log_probs.sum()), log_probs.size, split.num_characters, spelled)
    return Row(
        scored.model,
        scored.family,
        scored.order,
        result.tokens,
        result.log_likelihood,
        result.perplexity,
        by_frequency(split, vocab).measure(log_probs),
        by_position(split).measure(log_probs),
        unknown=0.0 if vocab.unk is None else float((split.tokens == vocab.unk).mean()),
        unk_is_trained=vocab.unk is None or vocab.counts[vocab.unk] > 0 or not any(vocab.counts),
        characters=result.characters,
        bits_per_character=result.bits_per_character,
        open_bits_per_character=result.open_bits_per_character,
        weights=None if scored.weights is None else scored.weights.tolist(),
        cache_decay=scored.cache_decay,
        dynamic=scored.dynamic,
    )


def against(first: Scored, other: Scored, contexts: int, spelling: Spelling | None = None) -> Against:
    """Compare a model with the first one."""
    bits = None if spelling is None else open_difference(first, other, spelling)
    if set(first.text.vocab.words) != set(other.text.vocab.words):
        return Against(None, [], [], bits)
    text = first.text
    return Against(
        paired_bootstrap(first.log_probs, other.log_probs, text.split.sentences),
        worst_contexts(text, other.log_probs, first.log_probs, contexts),
        worst_contexts(text, first.log_probs, other.log_probs, contexts),
        bits,
    )


def spelled_log_probs(text: Text, spelling: Spelling) -> np.ndarray:
    """log p of the spelling of every unknown word: [tokens]. 0 for other tokens, and for an <unk> that is in the text
    itself."""
    found, places = np.zeros(text.split.tokens.size), np.flatnonzero(text.split.tokens == text.vocab.unk)
    for place, word in zip(places, text.split.unknown_words(), strict=True):
        found[place] = 0.0 if word == UNK else spelling.log_prob(word)
    return found


def open_difference(first: Scored, other: Scored, spelling: Spelling) -> Difference:
    """The difference in open bits per character. The bootstrap resamples pieces of the text that end where both models
    end a sentence."""
    log_probs = [one.log_probs + spelled_log_probs(one.text, spelling) for one in (first, other)]
    one, two = first.text.split, other.text.split
    lines = [np.asarray(split.characters) for split in (one, two)]
    if one.tokens.size == two.tokens.size:
        units = resampled_units(one.sentences)
        return paired_bits(log_probs, (units, units), np.interp(units, one.sentences, lines[0]))
    common = np.intersect1d(lines[0], lines[1])
    ends = [split.sentences[np.searchsorted(line, common)] for split, line in zip((one, two), lines, strict=True)]
    return paired_bits(log_probs, ends, common)


def worst_contexts(text: Text, loser: np.ndarray, winner: np.ndarray, n: int) -> list[Context]:
    """The n tokens for which the winner's log p [tokens] exceeds the loser's by most, in descending order of the
    difference."""
    with np.errstate(invalid="ignore"):
        lost = np.nan_to_num(winner - loser, nan=0.0)
    worst = np.argsort(-lost, kind="stable")[:n]
    return [Context(around(text, int(t)), float(loser[t]), float(winner[t])) for t in worst if lost[t] > 0]


def around(text: Text, place: int) -> str:
    """The sentence around a token in [brackets], cut to a few words before and after."""
    (vocab, split), sentence = text, np.searchsorted(text.split.sentences, place, side="right")
    begin, end = max(place - BEFORE, int(split.sentences[sentence - 1])), int(split.sentences[sentence])
    words = vocab.decode(split.tokens[begin:end].tolist())
    before, after = words[: place - begin], words[place - begin + 1 :][:AFTER]
    return vocab.join([*before, f"[{words[place - begin]}]", *(word for word in after if word != EOS)])
