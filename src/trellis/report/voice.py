"""The model in its own words: sentences drawn from it, and a word that it fills in."""

from __future__ import annotations

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.models.base import LanguageModel
from trellis.report.format import probability, text, word
from trellis.report.heatmap import shade
from trellis.report.markup import Markup, element, section

SENTENCES, LONGEST, ANSWERS = 3, 40, 6


def voice_section(model: LanguageModel) -> Markup:
    """Sample sentences of any model, and the cloze answer of one that can give it."""
    sentences = model.sample(SENTENCES, LONGEST)
    caption = f"Sentences drawn at random, at most {LONGEST} tokens each."
    return section(
        "In its own words",
        caption,
        *(element("blockquote", text(sentence) or "(an empty sentence)") for sentence in sentences),
        *(_cloze(model, sentences) if isinstance(model, HMM) else ()),
    )


def _cloze(model: HMM, sentences: list[str]) -> list[Markup]:
    """The longest of the sentences with its middle token missing, and the most probable tokens for the gap."""
    spoken = [sentence for sentence in sentences if sentence and GAP not in sentence]
    if not spoken:
        return []
    try:
        tokens = model.vocab.decode(model.encode_line(max(spoken, key=len))[0].tolist())
        middle = len(tokens) // 2
        question = model.vocab.join([*tokens[:middle], GAP, *tokens[middle + 1 :]])
        ranked = model.infill(question, ANSWERS, samples=1, whole=len(tokens) < LONGEST).gaps[0]
    except TrellisError:  # without <unk>, bytes cut from their characters cannot be read again
        return []
    answers = [
        element("li", element("span", word(token), style=f"--p:{shade(p):.3f}"), element("small", probability(p)))
        for token, p in ranked
    ]
    return [
        element("h3", "One word hidden"),
        element("p", f"The middle of the longest sentence was “{word(tokens[middle])}”.", class_="caption"),
        element("blockquote", text(question)),
        element("ol", *answers, class_="answers"),
    ]
