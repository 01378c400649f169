"""Language model evaluation: one perplexity function for all models, and the text it is computed on."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis import distributed
from trellis.config import DataConfig
from trellis.corpus import Corpus, Split, load_corpus
from trellis.corpus.batches import Batches, Documents, Sentences, Streams
from trellis.corpus.cache import is_trusted, trust_source
from trellis.corpus.load import corpus_of
from trellis.corpus.sources import NAMED
from trellis.corpus.tagged import TAGGED
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel, PersistedModel
from trellis.options import build, choose
from trellis.registry import find_family
from trellis.types import Batch

WINDOW, TOKENS, LANES = 4096, 1 << 14, 16
ALL = "all"  # all splits of a corpus combined
SIDE = 64  # maximum number of parallel streams

READINGS: dict[str, Callable[[Split], Batches]] = {  # how a split is read, by the order of the model's training batches
    "streams": lambda split: Streams(split, 1, WINDOW),
    "sentences": lambda split: Sentences(split, TOKENS, 0, shuffle=False),
    "documents": lambda split: Documents(split, LANES, WINDOW, 0, shuffle=False),
}


def side_by_side(order: str, split: Split) -> Batches:
    """Batches for an approximate score of a long text. A stream is cut into parallel streams, each of which begins in
    the initial state."""
    lanes = max(1, min(SIDE, split.tokens.size // WINDOW))
    return Streams(split, lanes, WINDOW // lanes) if order == "streams" else READINGS[order](split)


class Evaluation(NamedTuple):
    """The log-likelihood of a text under a model. Every token counts, including <eos> and <unk>."""

    log_likelihood: float
    tokens: int
    characters: int | None = None  # of the original text, if known
    spelling: float | None = None  # log p of the spelling of all unknown words, in an open-vocabulary evaluation

    @property
    def perplexity(self) -> float:
        """exp(-log p / tokens); inf for a text of probability zero."""
        return math.exp(min(-self.log_likelihood / self.tokens, 700.0)) if self.log_likelihood > -math.inf else math.inf

    @property
    def bits_per_character(self) -> float | None:
        """-log2 p(text) divided by the number of characters of the original text, or None if this number is not known.
        Unknown words are scored as <unk>."""
        return -self.log_likelihood / math.log(2) / self.characters if self.characters else None

    @property
    def open_bits_per_character(self) -> float | None:
        """Bits per character with every unknown word spelled out; None unless evaluated with an open vocabulary."""
        if self.spelling is None:
            return None
        return self._replace(log_likelihood=self.log_likelihood + self.spelling).bits_per_character


@torch.no_grad()
def token_log_probs(
    model: LanguageModel, batches: Iterable[Batch], carry: bool = True
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch with log p(x_t | past) of its tokens [B, T], zero in the padding.

    With `carry`, each row continues the same row of the previous batch, unless the batch marks the row as fresh."""
    lanes, state = 0, None
    for batch in batches:
        batch = batch.to(model.device)
        if not carry or lanes < len(batch.tokens):
            state = model.start(len(batch.tokens))
        lanes = len(batch.tokens)
        log_probs, state = model.score(batch.tokens, model.reset(state, batch.fresh), batch.lengths)
        yield batch, log_probs


def evaluate(model: LanguageModel, batches: Iterable[Batch], carry: bool = True) -> Evaluation:
    """The log-likelihood of every token of the batches; see `token_log_probs` for `carry`."""
    total, tokens = 0.0, 0
    for batch, log_probs in token_log_probs(model, batches, carry):
        total += float(log_probs.sum(dtype=torch.float64))
        tokens += int(batch.lengths.sum())
    if not tokens:
        raise TrellisError("Nothing to evaluate: the split has no tokens.")
    return Evaluation(total, tokens, batches.split.num_characters if isinstance(batches, Batches) else None)


def evaluate_together(model: LanguageModel, order: str, split: Split) -> Evaluation:
    """The log-likelihood of a split, computed by all processes of a job.

    Sentences and documents are divided among the processes. A stream is divided into one part per process. Each process
    first reads the WINDOW tokens before its part; they set its state but are not counted."""
    if not distributed.is_joined():
        return evaluate(model, READINGS[order](split))
    if order == "streams":
        own = distributed.share_of(split.tokens.size)
        begin = max(0, own.start - WINDOW)
        part = split._replace(tokens=split.tokens[begin : own.stop])
        total = in_text_order(model, READINGS[order](part))[own.start - begin :].sum() if part.tokens.size else 0.0
    else:
        scored = token_log_probs(model, READINGS[order](split).share())
        total = sum(float(log_probs.sum(dtype=torch.float64)) for batch, log_probs in scored if not batch.idle)
    summed = distributed.add_up(torch.tensor(float(total), dtype=torch.float64))
    return Evaluation(float(summed), split.tokens.size)


def in_text_order(
    model: LanguageModel,
    batches: Batches,
    score: Callable[[LanguageModel, Batches], Iterator[tuple[Batch, Tensor]]] = token_log_probs,
) -> np.ndarray:
    """log p(x_t | past) of every token of the split, in text order rather than batch order: [tokens]."""
    result = np.empty(batches.tokens)
    for (_, log_probs), windows in zip(score(model, batches), batches.windows(), strict=True):
        for row, start, length in zip(log_probs.double().cpu().numpy(), windows.starts, windows.lengths, strict=True):
            result[start : start + length] = row[:length]
    return result


def data_of(model: PersistedModel) -> Any:
    """The data options of a model's training text."""
    return build(find_family(model.family).load("data"), model.about.get("data", {}), "data.")


def reading_of(model: PersistedModel) -> Callable[[Split], Batches]:
    """How the model reads a text for evaluation."""
    return choose(READINGS, model.about.get("order", "sentences"), "The order of batches")


def check_source(source: str) -> None:
    """Raise if a text named in a model file is neither a built-in corpus nor a text that the user has named before."""
    if source not in NAMED and source not in TAGGED and not is_trusted(source):
        raise TrellisError(
            f"Only the model file names its training text, {source!r}, so it was not read; to read it, choose it with "
            "--data (in Python, data)."
        )


def split_of(model: LanguageModel, data: Any = None, name: str | None = None, reader: str | None = None) -> Split:
    """A split of a corpus (by name), a file, sentences or a `Corpus`, encoded with the model's vocabulary."""
    if data is None or isinstance(data, str | PathLike):
        return load_split(model, None if data is None else str(data), name, reader)
    corpus = corpus_of(data, DataConfig(valid_fraction=0.0, test_fraction=0.0), model.vocab)
    return join(list(corpus.splits.values())) if name in (None, ALL) else corpus[str(name)]


def with_vocabulary(model: LanguageModel, config: DataConfig) -> Corpus:
    """A corpus encoded with the model's vocabulary. The cache usually has the training corpus with this vocabulary."""
    if config == data_of(model):
        corpus = load_corpus(config, report=False)  # training has reported them
        if corpus.vocab.words == model.vocab.words:
            return corpus
    return load_corpus(config, vocab=model.vocab, reader=model.about.get("reader", "text"))


def load_split(
    model: LanguageModel, source: str | None = None, name: str | None = None, reader: str | None = None
) -> Split:
    """A split of `source` (default: the training corpus), encoded with the model's vocabulary.

    The default split is test, or the whole text if the source has no splits. A source other than the training corpus is
    read by `reader` or, by default, by the reader of its suffix. Other suffixes are read like the training text."""
    if source is None and "data" not in model.about:
        raise TrellisError("The model does not record its training corpus; choose one with --data.")
    config = data_of(model)
    if source is None and config.source == "-":
        raise TrellisError("The model was trained on standard input; choose a text with --data.")
    if source is not None:
        trust_source(source)
    if not isinstance(config, DataConfig):
        if source is None:
            raise TrellisError(
                "A tagger is evaluated by 'trellis tag eval'; for its perplexity choose a text with --data."
            )
        config = DataConfig()
    if source is not None and source != config.source:
        vocab = model.vocab
        alike = replace(config, tokenizer=vocab.tokenizer, lower=vocab.lower, digits=vocab.digits)
        column = model.about.get("column") or config.column
        config = replace(alike, source=source, reader=reader, column=column, valid_fraction=0.0, test_fraction=0.0)
    check_source(config.source)
    corpus = with_vocabulary(model, config)
    name = name or ("test" if "test" in corpus.splits else ALL)
    return join(list(corpus.splits.values())) if name == ALL else corpus[name]


def join(splits: list[Split]) -> Split:
    """Concatenate several splits."""
    if len(splits) == 1:
        return splits[0]
    tokens, sentences, documents, characters, unknown = zip(*splits, strict=True)
    known = all(one is not None for one in (*characters, *unknown))
    return Split(
        np.concatenate(tokens),
        join_offsets(sentences),
        join_offsets(documents),
        join_offsets(characters) if known else None,
        np.concatenate(unknown) if known else None,
    )


def join_offsets(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """The offsets of concatenated texts."""
    starts = np.cumsum([0] + [one[-1] for one in offsets])
    pieces = [one[:-1] + start for one, start in zip(offsets, starts, strict=False)]
    return np.concatenate([*pieces, starts[-1:]])
