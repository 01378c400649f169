"""The report sections of a grammar: its preterminals, trees of sentences, and samples."""

import torch

from trellis.errors import TrellisError
from trellis.families.language_model import LONGEST, SENTENCES, samples_section
from trellis.families.pcfg.model import PCFG
from trellis.report.format import word
from trellis.report.markup import Markup, element, section

MOST_WORDS = 14  # of a sentence whose tree is drawn
PRETERMINALS, WORDS = 24, 6  # shown


def sections(model: PCFG) -> list[Markup]:
    """The report sections of a grammar."""
    sentences = model.sample(SENTENCES, LONGEST)
    return [*preterminals(model), *trees(model, sentences), samples_section(sentences)]


def trees(model: PCFG, sentences: list[str]) -> list[Markup]:
    """The trees of the beginnings of sentences, unless their decoded text cannot be encoded again."""
    drawn = []
    for sentence in sentences:
        words = model.vocab.split(sentence)[:MOST_WORDS]
        try:
            drawn += [element("div", model.draw(model.vocab.join(words)).picture(), class_="wide")] if words else []
        except TrellisError:
            continue
    caption = "The trees of minimum Bayes risk, with their most probable symbols."
    return [section("Trees", caption, *drawn)] if drawn else []


@torch.no_grad()
def preterminals(model: PCFG) -> list[Markup]:
    """The most probable words of the preterminals that are most frequent as children."""
    grammar = model.grammar()
    used = (grammar.left_words + grammar.right_words).sum(1) + grammar.root_words
    rows = []
    for symbol in used.topk(min(PRETERMINALS, len(used))).indices.tolist():
        top = grammar.log_words(symbol).topk(min(WORDS, len(model.vocab) - 1))
        best = top.indices[top.values > -torch.inf].tolist()
        shown = ", ".join(word(one) for one in model.vocab.decode(best))
        rows.append(element("tr", element("th", f"P{symbol}"), element("td", shown)))
    caption = "The most probable words of preterminals."
    return [section("Preterminals", caption, element("table", *rows))]
