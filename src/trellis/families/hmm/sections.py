"""The report sections of an HMM: its states, the trellis of a sentence, samples and a gap."""

from typing import cast

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.state_sections import state_sections
from trellis.families.language_model import LONGEST, SENTENCES, samples_section
from trellis.models.base import Infilled
from trellis.report.format import probability, text, word
from trellis.report.heatmap import shade
from trellis.report.markup import Markup, element, section
from trellis.report.trellis import draw_trellis

ANSWERS = 6  # candidates for the gap in a sentence
MOST_WORDS = 10  # maximum length of the sentence whose trellis is drawn


def sections(model: HMM) -> list[Markup]:
    """The report sections of an HMM."""
    sentences = model.sample(SENTENCES, LONGEST)
    samples = samples_section(sentences, *_cloze(model, sentences))
    return [*state_sections(model), *sentence_sections(model, sentences[0]), samples]


def sentence_sections(model: HMM, sentence: str) -> list[Markup]:
    """The trellis of the beginning of a sentence, unless its decoded text cannot be encoded again."""
    words = model.vocab.split(sentence)[:MOST_WORDS]
    try:
        drawn = draw_trellis(model.draw(model.vocab.join(words)))
    except TrellisError:
        return []
    caption = "Circles: p(state | sentence). Lines: p(transition | sentence). Rings: the Viterbi path."
    return [section("A sentence", caption, element("div", drawn, class_="wide"))]


def _cloze(model: HMM, sentences: list[str]) -> list[Markup]:
    """The longest sentence with its middle token hidden, and the most probable tokens for that gap."""
    spoken = [sentence for sentence in sentences if sentence and GAP not in sentence]
    if not spoken:
        return []
    try:
        tokens = model.vocab.decode(model.encode_line(max(spoken, key=len))[0].tolist())
        middle = len(tokens) // 2
        question = model.vocab.join([*tokens[:middle], GAP, *tokens[middle + 1 :]])
        ranked = cast(Infilled, model.infill(question, ANSWERS, 1, complete=len(tokens) < LONGEST)).gaps[0]
    except TrellisError:  # without <unk>, bytes of incomplete characters cannot be encoded again
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
