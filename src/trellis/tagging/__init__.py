"""Taggers: templates of features, representations of words, and a CRF over both."""

from __future__ import annotations

from pathlib import Path

from trellis.config import choose
from trellis.families.files import intact
from trellis.tagging.base import FILE, Tagger, read_tagger
from trellis.tagging.crf import FeatureTagger, TaggerConfig
from trellis.tagging.hmm import HMMTagger

__all__ = ["FeatureTagger", "HMMTagger", "Tagger", "TaggerConfig", "load_tagger"]


def load_tagger(path: str | Path) -> Tagger:
    """The tagger in a folder, of whatever kind; of a run of 'trellis train', its POS HMM."""
    found = None if (Path(path) / FILE).exists() else HMMTagger.find(Path(path))
    if found is not None:
        return found
    kind, settings, tensors = read_tagger(path)
    restore = choose({FeatureTagger.kind: FeatureTagger.restore}, kind, f"The kind of the tagger {path}")
    with intact(Path(path) / FILE):
        return restore(Path(path), settings, tensors)
