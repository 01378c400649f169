"""Compare models on one text: perplexity, its breakdown, and the significance of differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trellis.corpus import Split, Vocabulary
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.models.files import load
from trellis.tasks.bands import Band, by_frequency, by_position
from trellis.tasks.bootstrap import Difference, paired_bootstrap
from trellis.tasks.lm import READINGS, Evaluation, in_text_order, load_split

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


@dataclass
class Context:
    """A word on which one model is much better than another."""

    text: str  # the surrounding sentence, with the word in [brackets]
    log_prob: float  # under the worse model
    other: float  # under the better model


@dataclass
class Against:
    """A model compared with the first one."""

    perplexity: Difference
    losses: list[Context]  # where it is worst relative to the first model
    gains: list[Context]  # where it is best relative to the first model


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


def compare(
    paths: Sequence[Path],
    source: str | None,
    split: str | None,
    mix: bool = False,
    contexts: int = 5,
    device: str = "cpu",
) -> list[Row]:
    """A row per model and, with `mix`, one for their interpolation, with weights fitted on the validation split."""
    if mix and len(paths) < 2:
        raise TrellisError("Nothing to interpolate; pass at least two models.")
    text, scored = score_text(paths, source, split, device)
    weights = None
    if mix:
        fitted = fit_weights(stack(score_text(paths, source, "valid", device)[1]))
        weights = fitted.tolist()
        orders = {one.order for one in scored}
        order = orders.pop() if len(orders) == 1 else "mixed"
        scored.append(Scored(INTERPOLATED, INTERPOLATED, order, interpolate(stack(scored), fitted)))
    rows = [describe(text, one) for one in scored]
    for row, one in zip(rows[1:], scored[1:], strict=True):
        row.against_first = against(text, scored[0], one, contexts * (one.family != INTERPOLATED))
    rows[-1].weights = weights
    return rows


def score_text(paths: Sequence[Path], source: str | None, split: str | None, device: str) -> tuple[Text, list[Scored]]:
    """The text encoded by the first model, and every model's log-probabilities of it."""
    text: Text | None = None
    scored = []
    for path in paths:
        model = load(path, LanguageModel, device)
        mine = Text(model.vocab, load_split(model, source, split))
        text = text or mine
        require_same(text, mine, paths[0], path)
        order = model.about.get("order", "sentences")
        scored.append(Scored(str(path), model.name, order, in_text_order(model, READINGS[order](mine.split))))
    assert text is not None
    return text, scored


def require_same(first: Text, other: Text, first_path: Path, path: Path) -> None:
    """Raise if two models do not share vocabulary and text."""
    words = [(v.tokenizer, v.lower, v.digits, set(v.words)) for v in (first.vocab, other.vocab)]
    if words[0] != words[1]:
        raise TrellisError(
            f"{first_path} and {path} differ in vocabulary ({len(first.vocab):,} and {len(other.vocab):,} words): "
            "their perplexities cannot be compared; evaluate them one at a time."
        )
    ids = np.array([first.vocab.index[word] for word in other.vocab.words])
    if not np.array_equal(first.split.tokens, ids[other.split.tokens]):
        advice = "choose one for both with --data (and --split all)"
        raise TrellisError(f"{first_path} and {path} were trained on different texts; {advice}.")


def stack(scored: Sequence[Scored]) -> np.ndarray:
    return np.stack([one.log_probs for one in scored])


def describe(text: Text, scored: Scored) -> Row:
    """The results of one model."""
    result = Evaluation(float(scored.log_probs.sum()), scored.log_probs.size)
    return Row(
        scored.model,
        scored.family,
        scored.order,
        result.tokens,
        result.log_likelihood,
        result.perplexity,
        by_frequency(text.split, text.vocab).measure(scored.log_probs),
        by_position(text.split).measure(scored.log_probs),
    )


def against(text: Text, first: Scored, other: Scored, contexts: int) -> Against:
    """Compare a model with the first one."""
    return Against(
        paired_bootstrap(first.log_probs, other.log_probs, text.split.sentences),
        worst_contexts(text, other.log_probs, first.log_probs, contexts),
        worst_contexts(text, first.log_probs, other.log_probs, contexts),
    )


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
