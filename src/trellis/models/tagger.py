"""What every tagger can do, whatever model is in it, and where it is kept."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from torch import Tensor

from trellis.corpus.tagged import Tagged
from trellis.corpus.tagsets import OUTSIDE, units_of
from trellis.errors import TrellisError
from trellis.models.base import PersistedModel


class Tagger(PersistedModel):
    """Words in, tags out."""

    labels: list[str]
    word_counts: Mapping[str, int]  # of the words of the labelled text that it was trained on

    @abstractmethod
    def tag(self, words: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
        """The tags of sentences; parts of speech are needed where the tagger was trained with them."""

    @classmethod
    def described(cls) -> str:
        advice = "train one by 'trellis tag train', where --with takes what other models have learned of words"
        return super().described() if cls is not Tagger else f"a tagger; {advice}"

    @property
    def units(self) -> str:
        """What it is scored by: spans, where its tags are of that kind, or tokens."""
        return units_of(self.labels)

    def check(self, tags: Collection[str], allow_unknown: bool = False, name: str = "The tagger") -> None:
        """Refuse data with tags that the tagger does not have; some may be allowed, and count as errors."""
        spans = self.units == units_of(tags) == "spans"  # which differ only if their kinds do
        given, own = ({tag[2:] for tag in some if tag != OUTSIDE} if spans else {*some} for some in (tags, self.labels))
        unknown = given - own
        if not unknown or (allow_unknown and unknown < given):
            return
        what = "none of the tags of the data" if unknown == given else f"no tags {a_few(unknown)}"
        raise TrellisError(
            f"{name} knows {what}; its own are {a_few(own)}. Is it a tagger for another task? Map the tags"
            f"{', or allow those that it never saw (--allow-unknown)' * (unknown < given)}."
        )


def a_few(names: Collection[str], most: int = 8) -> str:
    """The first of them, for a message."""
    return ", ".join(sorted(names)[:most]) + ", ..." * (len(names) > most)


def check_sentences(words: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None = None) -> None:
    """Refuse what cannot be tagged."""
    for number, sentence in enumerate(words, 1):
        if not sentence:
            raise TrellisError(f"Sentence {number} is empty: there is nothing to tag; leave it out.")
    if pos is not None and [len(row) for row in pos] != [len(row) for row in words]:
        raise TrellisError("There are not as many parts of speech as words.")


def check_data(data: Tagged) -> None:
    check_sentences(data.words, data.pos)
    if not data.words or [len(row) for row in data.tags] != [len(row) for row in data.words]:
        raise TrellisError("There are not as many tags as words, or no sentences at all.")


def lines_to_tensor(lines: Collection[str]) -> np.ndarray:
    """Strings without newlines as bytes."""
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def tensor_to_lines(tensor: Tensor) -> list[str]:
    return tensor.numpy().tobytes().decode().split("\n") if tensor.numel() else []
