"""The options of an n-gram model."""

from dataclasses import dataclass
from typing import ClassVar

from trellis.config import ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class UnigramConfig(ModelConfig):
    """A unigram model has no options."""

    family: str = "unigram"
    order: ClassVar[int] = 1
    cross_sentences: ClassVar[bool] = False


@dataclass(frozen=True)
class BigramConfig(ModelConfig):
    """The context of a bigram."""

    family: str = "bigram"
    order: ClassVar[int] = 2
    cross_sentences: bool = option(False, "let contexts cross sentence boundaries")


@dataclass(frozen=True)
class NGramConfig(ModelConfig):
    """The order and the context of the n-grams."""

    family: str = "ngram"
    order: int = option(5, "length of the longest n-grams, in words", within="[1, 1000]")
    cross_sentences: bool = option(False, "let contexts cross sentence boundaries")
