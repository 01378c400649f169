"""The answers about a tagger."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from trellis.errors import TrellisError
from trellis.explore.views import Answer, Views, command
from trellis.models.tagger import Tagger

MOST_WORDS = 300  # of a text
ALTERNATIVES, WORTH = 3, 0.01  # tags shown for a word, and their minimum probability


class TagViews(Views):
    """Views of a tagger."""

    views: ClassVar[tuple[str, ...]] = ("tags",)
    model: Tagger

    @property
    def examples(self) -> list[str]:
        return [" ".join(self.frequent_words()[:6])]

    @abstractmethod
    def marginals(self, words: list[str]) -> tuple[list[str], Tensor]:
        """The names of the tags, and p(tag | sentence) of each word: [T, tags]."""

    def tag(self, text: str) -> Answer:
        """The tag of each word, its probability, and the most probable tags. Words are separated by spaces."""
        words = text.split()
        if not words or len(words) > MOST_WORDS:
            raise TrellisError(f"The text has {len(words)} words; pass 1 to {MOST_WORDS}.")
        tags = self.model.tag([words])[0]
        names, probs = self.marginals(words)
        place = {name: number for number, name in enumerate(names)}
        best = probs.topk(min(ALTERNATIVES, len(names)))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {
            "words": words,
            "tags": tags,
            "probs": [float(row[place[tag]]) if tag in place else None for row, tag in zip(probs, tags, strict=True)],
            "alternatives": [
                [{"tag": names[i], "prob": p} for i, p in zip(ids, values, strict=True) if p >= WORTH]
                for ids, values in rows
            ],
            "command": command("echo", text) + " | " + command("trellis", "tag", "apply", self.name),
        }
