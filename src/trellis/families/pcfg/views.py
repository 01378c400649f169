"""What the explorer shows of a grammar: the tree of a sentence."""

from typing import ClassVar, cast

from trellis.explore.language import LanguageViews
from trellis.explore.views import Answer, command
from trellis.families.pcfg.model import PCFG
from trellis.families.pcfg.parse import Tree


class PCFGViews(LanguageViews):
    """Views of a grammar: those of a language model, and trees."""

    views: ClassVar[tuple[str, ...]] = ("tree", *LanguageViews.views)
    model: PCFG

    def parse(self, text: str, method: str) -> Answer:
        """The constituents of a sentence, parents first, from left to right."""
        ids, words, known = self.words_of(text)
        tree = cast(Tree, self.model.parse(ids, method))
        return {
            **tree.as_data(),
            "words": words,
            "known": known,
            "command": command("trellis", "parse", self.name, text, "--method", method),
        }
