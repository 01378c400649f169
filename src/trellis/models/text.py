"""Encode the text of a query as token ids: one sentence, or a list of sentences in batches of similar length.

A string or a 1-D array of ids is one sentence and gives one result. Anything else, such as a list, a pandas column or
an iterator, is a list of sentences and gives a list of results. The sentences of a list are strings, sequences of
tokens, 1-D arrays of ids, or rows of a 2-D array."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trellis.corpus.load import refuse_frame
from trellis.corpus.tokenize import treat
from trellis.errors import TrellisError

TOKENS = 1 << 14  # tokens per batch, including padding
ENTRIES = 1 << 26  # values that inference stores per batch
ADVICE = "pass a string, a sequence of tokens, a 1-D array of integer ids, or a list of these"

A = TypeVar("A")
Text = str | np.ndarray | Tensor | Sequence[Any]


class Given(NamedTuple):
    """Sentences as ids, and whether they were given as a list."""

    sentences: list[np.ndarray]
    is_list: bool

    def answer(self, found: list[A]) -> Any:
        return found if self.is_list else found[0]

    def never_empty(self, eos: int) -> "Given":
        """The same sentences, with <eos> in place of an empty sentence, for computations that need at least one
        token."""
        return self._replace(sentences=[ids if ids.size else np.array([eos]) for ids in self.sentences])


def is_alone(text: Text) -> bool:
    """Whether the text is one sentence, rather than a list."""
    refuse_frame(text)
    if not isinstance(text, Iterable) or isinstance(text, Mapping | bytes):
        raise TrellisError(f"Unsupported text of type {type(text).__name__}; {ADVICE}.")
    array = as_array(text)
    return isinstance(text, str) or (isinstance(array, np.ndarray) and array.ndim < 2 and array.dtype.kind not in "UO")


def as_array(text: Text) -> Any:
    """A tensor or a pandas column as an array. Other text is returned unchanged."""
    text = text.cpu() if isinstance(text, Tensor) else text
    convert = getattr(text, "to_numpy", getattr(text, "numpy", None))
    return text if convert is None else convert()


def sentences_of(model: Any, text: Text, gap: str | None = None) -> Given:
    """Encode one sentence or a list, without <eos>; a missing token, written as the mark `gap`, becomes -1."""
    if is_alone(text):
        return Given([ids_of(as_array(text), model, gap, "The text")], False)
    sentences = enumerate(as_array(text), 1)
    return Given([ids_of(one, model, gap, f"Sentence {number}") for number, one in sentences], True)


def one_sentence(model: Any, prompt: Text) -> np.ndarray:
    """Encode a prompt, which is one sentence or a list of one."""
    found = sentences_of(model, prompt).sentences
    if len(found) != 1:
        raise TrellisError(f"Pass one prompt, not {len(found)}.")
    return found[0]


@singledispatch
def ids_of(sentence: Any, model: Any, gap: str | None, name: str) -> np.ndarray:
    """Encode one sentence as ids."""
    raise TrellisError(f"{name} has the unsupported type {type(sentence).__name__}; {ADVICE}.")


@ids_of.register
def _(sentence: str, model: Any, gap: str | None, name: str) -> np.ndarray:
    line = sentence.removesuffix("\n")
    if "\n" in line:
        raise TrellisError(f"{name} has {len(line.split(chr(10)))} lines; pass one line, or a list of sentences.")
    return encode(model, model.vocab.split(line, gap), gap)


@ids_of.register(Sequence)
def _(sentence: Sequence[str], model: Any, gap: str | None, name: str) -> np.ndarray:
    for token in sentence:
        if not isinstance(token, str):
            raise TrellisError(f"{name} contains the token {token!r}, which is not a string; {ADVICE}.")
    return encode(model, [treat(token, model.vocab.lower, model.vocab.digits) for token in sentence], gap)


@ids_of.register(np.ndarray)
@ids_of.register(Tensor)
def _(sentence: np.ndarray | Tensor, model: Any, gap: str | None, name: str) -> np.ndarray:
    ids = sentence.cpu().numpy() if isinstance(sentence, Tensor) else sentence
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise TrellisError(f"{name} is a {ids.ndim}-D array of {ids.dtype}; {ADVICE}.")
    low, size = 0 if gap is None else -1, len(model.vocab)
    wrong = ids[(ids < low) | (ids >= size)]
    if wrong.size:
        raise TrellisError(f"{name} contains the id {wrong[0]}; valid ids are {low} to {size - 1}.")
    return ids.astype(np.int64)


def encode(model: Any, tokens: Sequence[str], gap: str | None) -> np.ndarray:
    """Encode tokens as ids, -1 for gaps."""
    ids, known = np.full(len(tokens), -1), np.array([token != gap for token in tokens], bool)
    ids[known] = model.encode_words([token for token in tokens if token != gap])
    return ids


def in_batches(
    model: Any, given: Given, answer: Callable[[Tensor, Tensor], Iterable[A]], end: bool = False, copies: int = 1
) -> list[A]:
    """Apply `answer` to batches of tokens [B, T] and lengths [B], and return one result per sentence. `end` appends
    <eos>. `copies` is the number of copies of a sentence that inference stores."""
    room = max(1, min(TOKENS, ENTRIES // (model.width * max(copies, 1))))
    rows = [torch.from_numpy(np.append(ids, [model.vocab.eos] * end).astype(np.int64)) for ids in given.sentences]
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    found: dict[int, A] = {}
    while len(found) < len(rows):
        first = len(found)
        chosen = order[first : first + max(1, room // max(1, len(rows[order[first]])))]
        lengths = torch.tensor([len(rows[i]) for i in chosen], device=model.device)
        tokens = pad_sequence([rows[i] for i in chosen], batch_first=True).to(model.device)
        found |= zip(chosen, answer(tokens, lengths), strict=True)
    return [found[i] for i in range(len(rows))]


def rows_of(model: Any, text: Text, compute: Callable[[Tensor, Tensor], Tensor], complete: bool) -> Any:
    """Apply `compute`, a function of tokens [B, T] and lengths [B], and return its rows [T, ...] for the words of each
    sentence. `complete` appends <eos>. An empty sentence has no rows."""
    given = sentences_of(model, text)
    read = given if complete else given.never_empty(model.vocab.eos)
    found = in_batches(model, read, lambda tokens, lengths: compute(tokens, lengths).cpu().numpy(), complete)
    return given.answer([rows[: len(ids)] for rows, ids in zip(found, given.sentences, strict=True)])
