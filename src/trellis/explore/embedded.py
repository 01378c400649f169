"""The explorer inside report.html: a section with all states and some sentences, which needs no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trellis.errors import TrellisError
from trellis.explore.bundle import bundle, read_static
from trellis.explore.offline import BUDGET, SENTENCES, snapshot
from trellis.explore.views import Views, views_of
from trellis.models.base import PersistedModel
from trellis.report.markup import Markup, element, section
from trellis.tasks.lm import load_split

ABOUT, ID = "GET /api/about", "explorer"
SHORTEST, LONGEST = 4, 20  # words of a sentence
CAPTION = "The sentences and states below were computed beforehand. For other sentences, run trellis explore {}."
SAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
SCRIPT = """
{modules}
const given = JSON.parse(document.getElementById("explorer-data").textContent);
embedded.embed(document.getElementById("explorer"), given.css, given.table);
"""


def explorer_section(model: PersistedModel, folder: Path, budget: int = BUDGET) -> Markup:
    """A section of the report of a run."""
    table = snapshot(model, example_sentences(views_of(model)), budget, str(folder), folder)
    if ABOUT not in table or not table[ABOUT]["models"][0]["views"]:
        return Markup()
    data = element("script", in_script({"css": read_static("explorer.css"), "table": table}), id=f"{ID}-data",
                   type="application/json")  # fmt: skip
    code = Markup(f"//<![CDATA[{SCRIPT.format(modules=bundle('embedded'))}//]]>")
    return section(
        "Explorer", CAPTION.format(folder), element("div", id=ID), data, element("script", code, type="module")
    )


def in_script(value: Any) -> Markup:
    """A value as JSON that may stand inside <script>, in HTML and in XML."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return Markup("".join(SAFE.get(c, c) for c in text))


def example_sentences(views: Views) -> list[str]:
    """The first sentences of moderate length of the validation text, or else samples of the model."""
    vocab = views.model.vocab
    try:
        split = load_split(views.model, None, "valid") if views.has_corpus else None
    except TrellisError:
        split = None
    if split is None:
        return views.examples
    found: list[str] = []
    for start, end in zip(split.sentences[:-1], split.sentences[1:], strict=True):
        ids = [i for i in split.tokens[start:end].tolist() if i != vocab.eos]
        if SHORTEST <= len(ids) <= LONGEST and vocab.unk not in ids:
            found.append(vocab.join(vocab.decode(ids)))
        if len(found) == SENTENCES:
            break
    return list(dict.fromkeys(found)) or views.examples
