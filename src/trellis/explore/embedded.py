"""The explorer inside report.html: a section with all states and some sentences, which needs no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trellis.errors import TrellisError
from trellis.explore.bundle import bundle, read_static
from trellis.explore.offline import BUDGET, PACKED, SENTENCES, snapshot
from trellis.explore.views import Views, views_of
from trellis.models.base import LanguageModel, PersistedModel
from trellis.report.markup import Markup, element, section
from trellis.tasks.lm import load_split

ABOUT, ID = "GET /api/about", "explorer"
SHORTEST, LONGEST = 4, 20  # words of a sentence
MOST = 1_000  # sentences of the text that are considered
CAPTION = "The sentences and states below were computed beforehand. For other sentences, run trellis explore {}."
MOST_WORK = 1 << 36  # transitions that the Viterbi paths of all sentences compare
FEWER = "Since this model is large, the number of sentences is {}."
TOO_MANY = "Its states are too many for a report."
SCRIPT = """
{modules}
const given = JSON.parse(document.getElementById("explorer-data").textContent);
module_embedded.embed(document.getElementById("explorer"), given.css, given.table);
"""


def explorer_section(model: PersistedModel, folder: Path, budget: int = BUDGET) -> Markup:
    """A section of the report of a run. It says what was left out of a large model."""
    sentences = example_sentences(views_of(model))[: most_sentences(model)]
    table = snapshot(model, sentences, budget, str(folder), folder)
    if ABOUT not in table or not table[ABOUT]["models"][0]["views"]:
        return Markup()
    table[ABOUT]["models"][0]["examples"] = sentences
    data = element("script", in_script({"css": read_static("explorer.css"), "table": table}), id=f"{ID}-data",
                   type="application/json")  # fmt: skip
    code = Markup(f"//<![CDATA[{SCRIPT.format(modules=bundle('embedded'))}//]]>")
    large = TOO_MANY if "states" in table[ABOUT]["models"][0]["views"] else ""
    notes = [CAPTION.format(folder), table.get(PACKED, {"left_out": large})["left_out"]]
    notes += [FEWER.format(len(sentences))] if most_sentences(model) < SENTENCES else []
    return section(
        "Explorer", " ".join(filter(None, notes)), element("div", id=ID), data, element("script", code, type="module")
    )


def most_sentences(model: PersistedModel) -> int:
    """The number of sentences: fewer if every word may be emitted by every one of very many states."""
    params = getattr(model, "params", None)
    sparse = getattr(params, "partition", None) is not None or getattr(params, "support", None) is not None
    work = 1 if sparse else LONGEST * (model.num_states or 1) ** 2
    return max(1, min(SENTENCES, MOST_WORK // work))


def in_script(value: Any) -> Markup:
    """A value as JSON that may stand inside <script>, in HTML and in XML."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def example_sentences(views: Views) -> list[str]:
    """The first sentences of moderate length of the validation text, or else samples of the model."""
    model, vocab = views.model, views.model.vocab
    if not isinstance(model, LanguageModel):
        return views.examples
    try:
        split = load_split(model, None, "valid") if views.has_corpus else None
    except TrellisError:
        split = None
    if split is None:
        return distinct(model.sample(SENTENCES, LONGEST))
    found = []
    for start, end in zip(split.sentences[:MOST], split.sentences[1 : MOST + 1], strict=False):
        ids = [i for i in split.tokens[start:end].tolist() if i != vocab.eos]
        if SHORTEST <= len(ids) <= LONGEST and vocab.unk not in ids:
            found.append(vocab.join(vocab.decode(ids)))
    return distinct(found) or distinct(model.sample(SENTENCES, LONGEST))


def distinct(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(one for one in sentences if one.strip()))[:SENTENCES]
