"""The POS HMM as a tagger among others: what `trellis train` wrote for it tags as any tagger does."""

from __future__ import annotations

from pathlib import Path

from trellis.corpus.lexicon import KIND
from trellis.corpus.tokenize import EOS, UNK
from trellis.errors import TrellisError
from trellis.models.files import FILE as MODEL_FILE
from trellis.models.files import load, save_model
from trellis.models.tag_hmm import TagHMM
from trellis.tagging.base import Tagger, check_sentences


class HMMTagger(Tagger):
    """Tags by the marginals of a POS HMM."""

    kind = "pos-hmm"

    def __init__(self, model: TagHMM) -> None:
        self.model, vocab = model, model.vocab
        self.labels = model.lexicon.tags[1:]
        pairs = zip(vocab.words, vocab.counts, strict=True)
        self.counts = {word: count for word, count in pairs if word not in (EOS, UNK) and not word.startswith(KIND)}

    def tag(self, words: list[list[str]], pos: list[list[str]] | None = None) -> list[list[str]]:
        check_sentences(words, pos)
        return self.model.tag(words)

    def save(self, folder: Path) -> None:
        save_model(folder / MODEL_FILE, self.model)

    @classmethod
    def load(cls, path: str | Path) -> HMMTagger:
        """The POS HMM in the folder of a run."""
        model = load(path)
        if not isinstance(model, TagHMM):
            raise TrellisError(f"{path} holds a model of the family {model.family}, which gives no tags.")
        return cls(model)
