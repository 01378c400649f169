"""The configuration of a run that learns word vectors and predicts parts of speech from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.lds_for_text.probe import HIDDEN
from trellis.families.lds.config import LDSConfig, LDSTrainConfig


@dataclass(frozen=True)
class VectorRun:
    """All options of a run."""

    vectors: str = "lds"  # lds | word2vec | lds-of-word2vec
    text: str = "wikitext-2"  # the texts they are learned from, together with the words of the tagged training set
    tags: str = "ud_ewt"
    universal: bool = False  # whether Penn tags are mapped to the 12 universal ones
    window: int = 0  # a second classifier also sees the vectors of this many tokens on either side
    hidden: int = HIDDEN  # units of the classifier; 0: a linear one
    beside: str = ""  # runs whose tags are compared with these
    min_count: int = 2  # rarer words are <unk>
    model: LDSConfig = field(default_factory=LDSConfig)
    train: LDSTrainConfig = field(default_factory=lambda: LDSTrainConfig("em"))
    seed: int = 0
    device: str = "cpu"
