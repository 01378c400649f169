"""A run that learns vectors of words and probes them for parts of speech, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from trellis.families.lds.config import LDSConfig, LDSTrainConfig


@dataclass(frozen=True)
class VectorRun:
    """Everything that decides a run."""

    vectors: str = "lds"  # lds | word2vec | lds-of-word2vec
    text: str = "wikitext-2"  # that they are learned from, together with the words of the tagged training text
    tags: str = "ud_ewt"
    beside: str = ""  # runs whose tags are compared with these
    min_count: int = 2  # rarer words are <unk>
    model: LDSConfig = field(default_factory=LDSConfig)
    train: LDSTrainConfig = field(default_factory=lambda: LDSTrainConfig("em"))
    seed: int = 0
    device: str = "cpu"
