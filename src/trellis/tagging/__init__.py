"""Taggers: templates of features, representations of words, and a CRF over both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from trellis.config import suggestion
from trellis.errors import TrellisError
from trellis.families.files import intact
from trellis.tagging.base import FILE, Tagger, read_tagger
from trellis.tagging.crf import FeatureTagger, TaggerConfig
from trellis.tagging.hmm import HMMTagger

__all__ = ["TAGGERS", "FeatureTagger", "HMMTagger", "Tagger", "TaggerConfig", "load_tagger"]

TAGGERS: dict[str, Callable[[Path, dict[str, Any], dict[str, Tensor]], Tagger]] = {  # by kind
    FeatureTagger.kind: FeatureTagger.restore,
}


def load_tagger(path: str | Path) -> Tagger:
    """The tagger in a folder, of whatever kind; of a run of 'trellis train', its POS HMM."""
    found = None if (Path(path) / FILE).exists() else HMMTagger.find(Path(path))
    if found is not None:
        return found
    kind, settings, tensors = read_tagger(path)
    if kind not in TAGGERS:
        raise TrellisError(f"{path} is a tagger of the kind {kind!r}, which is not known{suggestion(kind, TAGGERS)}")
    with intact(Path(path) / FILE):
        return TAGGERS[kind](Path(path), settings, tensors)
