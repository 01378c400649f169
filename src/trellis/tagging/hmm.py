"""The tagger that is a POS HMM."""

from __future__ import annotations

from pathlib import Path

from trellis.errors import TrellisError
from trellis.families.files import FILE, load
from trellis.families.tag_hmm.model import TagHMM
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

    @classmethod
    def find(cls, path: Path) -> HMMTagger | None:
        """The POS HMM of a training run; None where there is no model at all."""
        file = path / FILE if path.is_dir() else path
        if file.name != FILE or not file.is_file():
            return None
        model = load(file)
        if not isinstance(model, TagHMM):
            raise TrellisError(
                f"{file} is a model of the family {model.family}, not a tagger; train one by 'trellis tag train', "
                "where --with takes what the model knows of words."
            )
        return cls(model)
