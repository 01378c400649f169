"""Answers for a page without a server: a table from requests to answers, of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trellis.errors import TrellisError
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.views import Answer, encoded, views_of

BUDGET = 4_000_000  # bytes of JSON
SENTENCES = 20
PAGE, LISTED = 50, 1_000  # states of a page of the list, and of the whole list
TOP, N = 10, 5
BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}
Request = tuple[Endpoint, dict[str, Any]]


def snapshot(
    model: Any, sentences: Sequence[str] = (), budget_bytes: int = BUDGET, name: str = "", folder: Path | None = None
) -> dict[str, Any]:
    """The answers that a page without a server can show, by request: "GET /api/map?model=0", or for POST the path and
    the compact JSON of the fields, as 'POST /api/smooth {"model":0,"text":"a b"}'.

    The sentences, and if there are none, those of `examples`, are answered by every view that reads a sentence. Then
    come the states, the most frequent first, until the answers have `budget_bytes` of JSON."""
    views = views_of(model, name, folder)
    views.background(lambda work: work())
    explorer = Explorer([views])
    table: dict[str, Any] = {}
    used = 2
    for endpoint, given in requests(explorer, list(sentences)[:SENTENCES] or views.examples):
        try:
            text = encoded(explorer.answer(endpoint, given))[1]
        except TrellisError:  # the family has no such answer, or the text is not one that it reads
            continue
        key = key_of(endpoint, given)
        size = len(text) + len(json.dumps(key)) + 2
        if used + size <= budget_bytes:
            used += size
            table[key] = json.loads(text)
    return table


def requests(explorer: Explorer, sentences: Sequence[str]) -> Iterator[Request]:
    """The requests of a page, the most important ones first."""
    one = {"model": 0}
    for name in ("about", "training", "classes", "map"):
        yield BY_NAME[name], one if BY_NAME[name].fields else {}
    yield BY_NAME["sample"], one | {"n": N, "seed": 0, "prompt": ""}
    for text in sentences:
        for name in ("smooth", "score", "tag"):
            yield BY_NAME[name], one | {"text": text}
        yield BY_NAME["predict"], one | {"text": text, "top": TOP}
    for layer in range(len(explorer.views[0].model.sizes)):
        yield BY_NAME["layers"], one | {"layer": layer}
    yield BY_NAME["ngrams"], one | {"prompt": ""}
    yield from pages(explorer)
    for word in explorer.views[0].frequent_words():
        yield BY_NAME["neighbours"], one | {"word": word, "top": 20}


def pages(explorer: Explorer) -> Iterator[Request]:
    """The pages of the list of states, and every state, the most frequent first."""
    total = explorer.views[0].model.num_states or 0
    page = lambda offset, limit: {"model": 0, "offset": offset, "limit": limit, "query": "", "sort": "occupancy"}  # noqa: E731
    for offset in range(0, min(total, LISTED), PAGE):
        yield BY_NAME["states"], page(offset, PAGE)
    for offset in range(0, total, LISTED):
        try:
            found: Answer = explorer.answer(BY_NAME["states"], page(offset, LISTED))
        except TrellisError:
            return
        for item in found["items"]:
            yield BY_NAME["state"], {"id": item["id"], "model": 0}


def key_of(endpoint: Endpoint, given: dict[str, Any]) -> str:
    """The key of a request in the table."""
    if endpoint.method == "POST":
        return f"POST {endpoint.path} {json.dumps(given, ensure_ascii=False, separators=(',', ':'))}"
    in_path = {name for name in given if f"{{{name}}}" in endpoint.path}
    query = urlencode({name: value for name, value in given.items() if name not in in_path})
    return f"GET {endpoint.path.format(**given)}" + (f"?{query}" if query else "")
