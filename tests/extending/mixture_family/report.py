"""The report section of a mixture."""

from __future__ import annotations

from mixture_family.model import Mixture
from trellis.report.markup import Markup, element, section


def sections(model: Mixture) -> list[Markup]:
    best = model.words.argmax(0).tolist()
    rows = [element("li", word) for word in model.vocab.decode(best)]
    return [section("Components", "The most probable word of each component.", element("ol", *rows))]
