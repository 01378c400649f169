"""The tagger that is a POS HMM."""

from __future__ import annotations

from pathlib import Path

from trellis.models import TagHMM, load, save_model
from trellis.models.files import FILE
from trellis.tagging.base import Tagger, check_sentences


class HMMTagger(Tagger):
    """argmax_y p(y_t | x) of every token, states summed out."""

    kind = "hmm"

    def __init__(self, model: TagHMM) -> None:
        self.model, self.labels = model, model.lexicon.tags[1:]
        self.counts = model.lexicon.tagged_counts

    def tag(self, words: list[list[str]], pos: list[list[str]] | None = None) -> list[list[str]]:
        check_sentences(words, pos)
        return self.model.tag(words)

    def save(self, folder: Path) -> None:
        save_model(folder / FILE, self.model)

    @classmethod
    def find(cls, folder: Path) -> HMMTagger | None:
        """The POS HMM of a training run, if that is what the folder holds."""
        model = load(folder) if (folder / FILE).is_file() else None
        return cls(model) if isinstance(model, TagHMM) else None
