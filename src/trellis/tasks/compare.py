"""Compare models on one text: perplexity, its breakdown, and the significance of differences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from trellis.corpus import Split, Vocabulary
from trellis.corpus.cache import trust_source
from trellis.corpus.tokenize import EOS, UNK
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.models.files import load
from trellis.registry import find_family
from trellis.storage import as_path
from trellis.tasks.bands import Band, by_frequency, by_position
from trellis.tasks.bootstrap import Difference, paired_bits, paired_bootstrap, resampled_units
from trellis.tasks.lm import Evaluation, in_text_order, load_split, reading_of, split_of
from trellis.tasks.spelling import Spelling

INTERPOLATED = "interpolated"
BEFORE, AFTER = 12, 3  # tokens of context shown before and after a word
GAIN, ITERATIONS = 1e-9, 5000  # EM for the weights stops at a smaller gain, in nats per token


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
    weights: list[float] | None = None  # interpolation weights of the models, if this is their mixture
    unknown: float = 0.0  # share of <unk> among the tokens
    unk_is_trained: bool = True  # whether the training text had any <unk>
    characters: int | None = None  # of the original text
    bits_per_character: float | None = None
    open_bits_per_character: float | None = None  # with unknown words spelled out


def compare(
    models: Sequence[LanguageModel | str | PathLike[str]],
    data: Any = None,
    split: str | None = None,
    mix: bool = False,
    contexts: int = 5,
    device: str = "cpu",
    open_vocabulary: bool = False,
    ngram: int = 0,
) -> list[Row]:
    """Compare language models, given as models or files, on a text as in `evaluate`.

    Returns a row per model. `mix` (`--interpolate` on the command line) adds a row for the linear mixture of the
    models, with weights fitted on the validation split. `ngram` adds an n-gram model of that order, estimated from the
    training text of the first model (`--mix` on the command line sets both). With `open_vocabulary`, unknown words are
    spelled out, and the vocabularies may differ.

    >>> models = [trellis.train(["a b", "b a"] * 20, family=family).model for family in ("unigram", "bigram")]
    >>> first, second = trellis.compare(models, ["a b", "b a"] * 20)
    >>> second.perplexity < first.perplexity, second.against_first.perplexity.significant
    (True, True)
    """
    data = list(data) if isinstance(data, Iterator) else data
    if isinstance(data, str | PathLike):
        trust_source(str(data))
    named = [with_name(model, device) for model in models]
    if ngram:
        named.append(ngram_of(named[0][1], ngram))
    if mix and len(named) < 2:
        raise TrellisError("Nothing to interpolate; pass at least two models.")
    scored = score_text(named, data, split, open_vocabulary and not mix)
    weights = None
    if mix:
        fitted = fit_weights(stack(score_text(named, data, "valid")))
        weights = fitted.tolist()
        orders = {one.order for one in scored}
        order = orders.pop() if len(orders) == 1 else "mixed"
        mixed = interpolate(stack(scored), fitted)
        scored.append(Scored(INTERPOLATED, INTERPOLATED, order, mixed, scored[0].text))
    spelling = spelling_of(named[0][1]) if open_vocabulary else None
    rows = [describe(one, spelling) for one in scored]
    for row, one in zip(rows[1:], scored[1:], strict=True):
        row.against_first = against(scored[0], one, contexts * (one.family != INTERPOLATED), spelling)
    rows[-1].weights = weights
    return rows


def with_name(model: LanguageModel | str | PathLike[str], device: str) -> tuple[str, LanguageModel]:
    """A model and its name: that of its file or family."""
    if isinstance(model, LanguageModel):
        return model.name, model
    return str(model), load(as_path(model), LanguageModel, device)


def ngram_of(model: LanguageModel, order: int) -> tuple[str, LanguageModel]:
    """An n-gram model of a model's training text, with its name; it reads texts as the model does."""
    other = find_family("ngram").load("model").fit(model.vocab, load_split(model, None, "train"), order)
    other.about = model.about
    return f"{other.name} of the training text", other


def spelling_of(model: LanguageModel) -> Spelling:
    """The character model of a model's training text, or of its vocabulary if the text is not recorded."""
    has_text = model.about.get("data", {}).get("source", "-") != "-"
    return Spelling.of_training_text(model.vocab, load_split(model, None, "train") if has_text else None)


def score_text(
    models: Sequence[tuple[str, LanguageModel]], data: Any, split: str | None, open_vocabulary: bool = False
) -> list[Scored]:
    """Every model's log-probabilities of a text; unless the vocabulary is open, all models must have the same words."""
    scored: list[Scored] = []
    for name, model in models:
        text = Text(model.vocab, split_of(model, data, split))
        if scored:
            (require_same_characters if open_vocabulary else require_same)(scored[0].text, text, scored[0].model, name)
        order = model.about.get("order", "sentences")
        log_probs = in_text_order(model, reading_of(model)(text.split))
        scored.append(Scored(name, model.name, order, log_probs, text))
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
    """log p of the spelling of every unknown word [tokens]; 0 for other tokens, and for the text's own <unk>."""
    found, places = np.zeros(text.split.tokens.size), np.flatnonzero(text.split.tokens == text.vocab.unk)
    for place, word in zip(places, text.split.unknown_words(), strict=True):
        found[place] = 0.0 if word == UNK else spelling.log_prob(word)
    return found


def open_difference(first: Scored, other: Scored, spelling: Spelling) -> Difference:
    """The difference in open bits per character; the bootstrap resamples the sentences that both models have."""
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
    """The n tokens for which the winner's log p [tokens] exceeds the loser's most, in descending order."""
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


def interpolate(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log p of every token under the mixture, [tokens], given log p under each model, [models, tokens]."""
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(np.log(weights)[:, None] + log_probs, 0)


def fit_weights(log_probs: np.ndarray) -> np.ndarray:
    """Maximum-likelihood mixture weights [models] given log p [models, tokens]; never worse than the best single model.

    Fitted by EM from equal weights; the likelihood is concave, so EM finds the maximum."""
    best = log_probs.max(0)
    possible = best > -np.inf
    probs = np.exp(log_probs[:, possible] - best[possible])  # relative to the best model
    weights, reached, gain = np.full(len(probs), 1 / len(probs)), -np.inf, np.inf
    for _ in range(ITERATIONS * bool(possible.any())):
        if gain < GAIN:
            break
        before, (weights, reached) = reached, em_step(probs, weights)
        gain = reached - before
    return max((weights, *np.eye(len(probs))), key=lambda w: interpolate(log_probs[:, possible], w).sum())


def em_step(probs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean responsibility of each model [models], and the mean log p under the old weights."""
    mixed = weights @ probs
    return weights * (probs / mixed).mean(1), float(np.log(mixed).mean())
