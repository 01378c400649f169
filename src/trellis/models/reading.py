"""Read queries in the same way as the training text: as records, as tokens with their offsets in the text, and as rows
of a table with the features of tokens."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from trellis.corpus.read import Record, find_reader, reader_of_suffix, suffix_of
from trellis.corpus.recipe import Recipe, check_recipe
from trellis.corpus.tokenize import TOKENIZERS, treat
from trellis.errors import TrellisError
from trellis.models.base import STATES
from trellis.models.text import Text, as_array, encode, ids_of, is_alone

PRETOKENIZED = TOKENIZERS["whitespace"]


class Sentence(NamedTuple):
    """A sentence of a query, as the model reads it."""

    number: int  # from 1
    place: str  # as "Line 1", for messages
    text: str
    tokens: Sequence[str]
    ids: np.ndarray
    spans: Sequence[tuple[int, int]] | None = None  # the characters [start, end) of each token, if known
    id: str | None = None  # of its record, if it has one

    @property
    def named(self) -> dict[str, str]:
        """The first column of a table: the id of the sentence, if it has one."""
        return {} if self.id is None else {"id": self.id}


def recipe_of(model: Any, path: Path | None = None, reader: str | None = None, column: str | None = None) -> Recipe:
    """The options for reading the text of queries.

    The reader is `reader` if given, else the reader for the suffix of the file, else the reader of the training text.
    Error messages name the options of the command line."""
    own = model.about.get("reader", "text")
    chosen = reader or (own if path is None else reader_of_suffix(suffix_of(path), own))
    recipe = Recipe(chosen, column or model.about.get("column", ""), model.vocab.tokenizer)
    find_reader(chosen, "--reader")
    check_recipe(recipe, "--column")
    return recipe


def sentences(
    model: Any, records: Iterable[Record], gap: str | None = None, pretokenized: bool = False, unit: str = "Line"
) -> Iterator[Sentence]:
    """The sentences of records. `unit` names the units that `Record.line` counts, for error messages."""
    vocab = model.vocab
    for number, record in enumerate(records, 1):
        text, place = record.text, f"{unit} {record.line}"
        if pretokenized:
            tokens = [treat(token, vocab.lower, vocab.digits) for token in PRETOKENIZED.split(text)]
        else:
            tokens = vocab.split(text, gap)
        try:
            yield Sentence(number, place, text, tokens, encode(model, tokens, gap), id=record.id)
        except TrellisError as error:
            raise TrellisError(f"{place}: {error}") from error


def with_spans(model: Any, sentence: Sentence, pretokenized: bool = False) -> Sentence:
    """A sentence with the character offsets of its tokens, if the tokenizer provides them."""
    if pretokenized:
        return sentence._replace(spans=[match.span() for match in PRETOKENIZED.piece.finditer(sentence.text)])
    return sentence._replace(spans=model.vocab.spans(sentence.text))


def as_sentences(model: Any, text: Text) -> Iterator[Sentence]:
    """The sentences of a text from Python."""
    alone = is_alone(text)
    for number, one in enumerate([as_array(text)] if alone else as_array(text), 1):
        place = "The text" if alone else f"Sentence {number}"
        ids = ids_of(one, model, None, place)
        if isinstance(one, str):
            line = one.removesuffix("\n")
            yield Sentence(number, place, line, model.vocab.split(line), ids, model.vocab.spans(line))
        else:
            tokens = model.vocab.decode(ids.tolist()) if isinstance(one, np.ndarray | Tensor) else [*one]
            yield Sentence(number, place, model.vocab.join(tokens), tokens, ids)


def check_top(model: Any, top: int | None) -> None:
    """Raise if the most probable states are requested from a model without states."""
    if top and model.embed_kinds and not model.sizes:
        raise TrellisError(f"This {model.name} model {STATES[0]}: its tokens have vectors, no most probable states.")


def token_rows(
    model: Any, given: Sequence[Sentence], kind: str | None = None, top: int = 0
) -> Iterator[dict[str, Any]]:
    """Rows with the position and the vector of each token. With `top`, they have the `top` most probable states of
    every layer instead of the vector."""
    for sentence, vectors in zip(given, model.embed([one.ids for one in given], kind), strict=True):
        spans: Sequence[Any] = sentence.spans or [(None, None)] * len(sentence.tokens)
        best = best_states(vectors, model.sizes, top) if top else [[{"vector": vector}] for vector in vectors]
        for number, (token, (start, end), found) in enumerate(zip(sentence.tokens, spans, best, strict=True), 1):
            place = {"sentence": sentence.number, "number": number, "token": token, "start": start, "end": end}
            yield from ({**sentence.named, **place, **one} for one in found)


def best_states(vectors: np.ndarray, sizes: Sequence[int], top: int) -> list[list[dict[str, Any]]]:
    """The `top` most probable states of each layer at every token, given state probabilities [T, S] of all layers."""
    found: list[list[dict[str, Any]]] = [[] for _ in vectors]
    begin = 0
    for layer, size in enumerate(sizes):
        probs = vectors[:, begin : begin + size]
        begin += size
        best = np.argsort(-probs, 1, kind="stable")[:, :top] if top > 1 else probs.argmax(1)[:, None]
        for row, states, values in zip(found, best.tolist(), np.take_along_axis(probs, best, 1).tolist(), strict=True):
            for rank, (state, value) in enumerate(zip(states, values, strict=True), 1):
                place = ({"layer": layer} if len(sizes) > 1 else {}) | ({"rank": rank} if top > 1 else {})
                row.append({**place, "state": state, "probability": value})
    return found
