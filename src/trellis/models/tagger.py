"""The interface and storage of all taggers."""

import json
import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.corpus.tagged import Tagged
from trellis.corpus.tagsets import OUTSIDE, units_of
from trellis.errors import TrellisError
from trellis.models.base import PersistedModel

logger = logging.getLogger(__name__)


class Tagger(PersistedModel):
    """A model that assigns a tag to each word."""

    labels: list[str]
    word_counts: Mapping[str, int]  # word counts of the tagged training text

    def tag(
        self, words: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None = None, **options: Any
    ) -> list[list[str]]:
        """Tag tokenised sentences: one list of tags for each sentence. If the tagger was trained with parts of speech,
        `pos` is required."""
        sentences = checked_sentences(words, pos)
        order = sorted((i for i, sentence in enumerate(sentences) if sentence), key=lambda i: len(sentences[i]))
        some_pos = None if pos is None else [pos[i] for i in order]
        found = dict(zip(order, self.tag_words([sentences[i] for i in order], some_pos, **options), strict=True))
        return [found.get(i, []) for i in range(len(sentences))]

    @abstractmethod
    def tag_words(self, words: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
        """Tag sentences of at least one word, sorted by length. The options are the same as for `tag`."""

    @classmethod
    def described(cls) -> str:
        advice = "train one with 'trellis tag train'; its --with option uses word representations of other models"
        return super().described() if cls is not Tagger else f"a tagger; {advice}"

    @property
    def units(self) -> str:
        """The unit of evaluation: "spans" if the tags mark spans, else "tokens"."""
        return units_of(self.labels)

    def check(self, tags: Collection[str], name: str = "The tagger") -> None:
        """Raise if all tags of the data are unknown to the tagger. If some are unknown, warn that they count as
        errors."""
        spans = self.units == units_of(tags) == "spans"  # if so, only the labels need to match
        given, own = ({tag[2:] for tag in some if tag != OUTSIDE} if spans else {*some} for some in (tags, self.labels))
        unknown = given - own
        if unknown and unknown == given:
            raise TrellisError(
                f"{name} has none of the tags of the data; it has {a_few(own)}. Was it trained for another task? "
                "Map the tags."
            )
        if unknown:
            logger.warning(f"{name} has no tags {a_few(unknown)}: they count as errors")


def a_few(names: Collection[str], most: int = 8) -> str:
    """The first few names, for an error message."""
    return ", ".join(sorted(names)[:most]) + ", ..." * (len(names) > most)


def checked_sentences(words: Any, pos: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
    """Tokenised sentences (lists, tuples, arrays, a pandas column, an iterator) as lists; raises if they do not match
    their parts of speech."""
    if isinstance(words, str) or hasattr(words, "columns") or not isinstance(words, Iterable):
        raise TrellisError("Pass a list of sentences, each split into words, as in [['the', 'cat']].")
    found: list[list[str]] = []
    for number, sentence in enumerate(words, 1):
        split = isinstance(sentence, Iterable) and not isinstance(sentence, str)
        tokens = list(sentence) if split else []
        if not split or not all(isinstance(word, str) for word in tokens):
            raise TrellisError(f"Sentence {number} is not a list of words; split it into words, as in ['the', 'cat'].")
        found.append(tokens)
    if pos is not None and [len(row) for row in pos] != [len(row) for row in found]:
        raise TrellisError("The parts of speech do not match the words in number.")
    return found


def check_data(data: Tagged) -> None:
    """Raise if sentences are empty or do not match their tags."""
    sentences = checked_sentences(data.words, data.pos)
    if empty := next((number for number, sentence in enumerate(sentences, 1) if not sentence), None):
        raise TrellisError(f"Sentence {empty} is empty; leave it out.")
    if not data.words or [len(row) for row in data.tags] != [len(row) for row in data.words]:
        raise TrellisError("The tags do not match the words in number, or there are no sentences.")


def lines_to_tensor(lines: Collection[str]) -> np.ndarray:
    """Encode strings as an array of bytes."""
    return np.frombuffer(json.dumps(list(lines)).encode(), np.uint8)


def tensor_to_lines(tensor: Tensor) -> list[str]:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise ValueError("the names are not a string of bytes")
    return json.loads(tensor.numpy().tobytes())
