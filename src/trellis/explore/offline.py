"""Answers for a page without a server: a table from requests to answers, of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.packed import packed
from trellis.explore.views import encoded, views_of

BUDGET = 4_000_000  # bytes of JSON
STATES_SHARE = 0.85  # of the budget, at most, for the states
SENTENCES = 20
TOP, N = 10, 5
DIGITS = 5  # significant digits of numbers
PACKED = "states"  # the key of all states
BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}
Request = tuple[Endpoint, dict[str, Any]]


def snapshot(
    model: Any, sentences: Sequence[str] = (), budget_bytes: int = BUDGET, name: str = "", folder: Path | None = None
) -> dict[str, Any]:
    """The answers that a page without a server can show, by request: "GET /api/about", or for POST the path and the
    compact JSON of the fields, as 'POST /api/smooth {"model":0,"text":"a b"}'. Under "states" are all states, packed
    as in `explore.packed`.

    Every view that reads a sentence answers for each of the sentences (by default, those of `examples`). With
    `folder`, results that take long to compute are kept there."""
    views = views_of(model, name, folder)
    views.background(lambda work: work())
    table: dict[str, Any] = {}
    tables, room = views.tables(), budget_bytes
    states = None if tables is None else packed(tables, model.vocab.words, int(room * STATES_SHARE))
    if states is not None:
        table[PACKED] = states
        room -= len(json.dumps(table, separators=(",", ":")))
    explorer = Explorer([views])
    for endpoint, given in requests(explorer, list(sentences)[:SENTENCES] or views.examples):
        try:
            answer = explorer.answer(endpoint, given)
        except TrellisError:  # the family has no such answer, or cannot read the text
            continue
        answer |= {"static": True} if endpoint.name == "about" else {}
        key, text = key_of(endpoint, given), encoded(answer, DIGITS)[1]
        size = len(text) + len(json.dumps(key)) + 4
        if size <= room:
            room -= size
            table[key] = json.loads(text)
    return table


def requests(explorer: Explorer, sentences: Sequence[str]) -> Iterator[Request]:
    """The requests of a page, the most important ones first."""
    one = {"model": 0}
    for name in ("about", "training"):
        yield BY_NAME[name], one if BY_NAME[name].fields else {}
    yield BY_NAME["sample"], one | {"n": N, "seed": 0, "prompt": ""}
    for text in sentences:
        for name in ("smooth", "score", "tag"):
            yield BY_NAME[name], one | {"text": text}
        yield BY_NAME["parse"], one | {"text": text, "method": "mbr"}
        yield BY_NAME["predict"], one | {"text": text, "top": TOP}
        if GAP in text:
            yield BY_NAME["infill"], one | {"text": text, "top": TOP, "complete": True}
    for layer in range(len(explorer.views[0].model.sizes)):
        yield BY_NAME["layers"], one | {"layer": layer}
    yield BY_NAME["ngrams"], one | {"prompt": ""}
    for word in explorer.views[0].frequent_words():
        yield BY_NAME["neighbours"], one | {"word": word, "top": 20}


def key_of(endpoint: Endpoint, given: dict[str, Any]) -> str:
    """The key of a request in the table."""
    if endpoint.method == "POST":
        return f"POST {endpoint.path} {json.dumps(given, ensure_ascii=False, separators=(',', ':'))}"
    in_path = {name for name in given if f"{{{name}}}" in endpoint.path}
    query = urlencode({name: value for name, value in given.items() if name not in in_path})
    return f"GET {endpoint.path.format(**given)}" + (f"?{query}" if query else "")
