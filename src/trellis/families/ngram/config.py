"""The options of an n-gram model."""

from dataclasses import dataclass
from typing import ClassVar

from trellis.config import ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class UnigramConfig(ModelConfig):
    """A model of single words has no options."""

    family: str = "unigram"
    order: ClassVar[int] = 1
    cross_sentences: ClassVar[bool] = False


@dataclass(frozen=True)
class BigramConfig(ModelConfig):
    """What counts as context."""

    family: str = "bigram"
    order: ClassVar[int] = 2
    cross_sentences: bool = option(False, "contexts reach over the ends of sentences")


@dataclass(frozen=True)
class NGramConfig(ModelConfig):
    """How long the n-grams are, and what counts as context."""

    family: str = "ngram"
    order: int = option(5, "words in the longest n-gram", within="[1, inf)")
    cross_sentences: bool = option(False, "contexts reach over the ends of sentences")
