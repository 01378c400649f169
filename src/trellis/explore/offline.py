"""Answers for a page without a server: a table from requests to answers, of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.explore.endpoints import ENDPOINTS, MOST_STATES, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.views import Answer, encoded, views_of

BUDGET = 4_000_000  # bytes of JSON
SENTENCES = 20
PAGE = 50  # states of a page of the list
TOP, N = 10, 5
DIGITS = 5  # significant digits of numbers
LONG, LEAST_STATE = ("words", "contexts"), 1_500  # the lists of a state that may be shortened; bytes of a state
STATE_WORK = 1 << 22  # states in the table x states of the model: large models have only their most frequent states
BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}
Request = tuple[Endpoint, dict[str, Any]]


def snapshot(
    model: Any, sentences: Sequence[str] = (), budget_bytes: int = BUDGET, name: str = "", folder: Path | None = None
) -> dict[str, Any]:
    """The answers that a page without a server can show, by request: "GET /api/map?model=0", or for POST the path and
    the compact JSON of the fields, as 'POST /api/smooth {"model":0,"text":"a b"}'.

    First come the answers of every view that reads a sentence, for each of the sentences (by default, those of
    `examples`). Then come the states, the most frequent first, until the answers have `budget_bytes` of JSON."""
    views = views_of(model, name, folder)
    views.background(lambda work: work(), keep=False)
    explorer = Explorer([views])
    table: dict[str, Any] = {}
    room, states = budget_bytes, min(model.num_states or 1, STATE_WORK // (model.num_states or 1))
    for endpoint, given in requests(explorer, list(sentences)[:SENTENCES] or views.examples, states):
        if endpoint.name == "state" and room < LEAST_STATE:
            continue
        try:
            answer = explorer.answer(endpoint, given)
        except TrellisError:  # the family has no such answer, or cannot read the text
            continue
        answer |= {"static": True} if endpoint.name == "about" else {}
        key = key_of(endpoint, given)
        least = LEAST_STATE if endpoint.name == "state" else room
        text = fitted(answer, max(least, room // max(1, states)) - len(json.dumps(key)) - 4)
        states -= endpoint.name == "state"
        if len(text) + len(json.dumps(key)) + 4 <= room:
            room -= len(text) + len(json.dumps(key)) + 4
            table[key] = json.loads(text)
    return table


def fitted(answer: Answer, room: int) -> bytes:
    """The JSON of an answer. The long lists of a state are halved until it has at most `room` bytes."""
    text = encoded(answer, DIGITS)[1]
    while len(text) > room and any(len(answer.get(name, ())) > 1 for name in LONG):
        answer = answer | {name: answer[name][: len(answer[name]) // 2] for name in LONG if name in answer}
        text = encoded(answer, DIGITS)[1]
    return text


def requests(explorer: Explorer, sentences: Sequence[str], states: int) -> Iterator[Request]:
    """The requests of a page, the most important ones first."""
    one = {"model": 0}
    for name in ("about", "training", "classes", "map"):
        yield BY_NAME[name], one if BY_NAME[name].fields else {}
    yield BY_NAME["sample"], one | {"n": N, "seed": 0, "prompt": ""}
    for text in sentences:
        for name in ("smooth", "score", "tag"):
            yield BY_NAME[name], one | {"text": text}
        yield BY_NAME["predict"], one | {"text": text, "top": TOP}
        if GAP in text:
            yield BY_NAME["infill"], one | {"text": text, "top": TOP, "complete": True}
    for layer in range(len(explorer.views[0].model.sizes)):
        yield BY_NAME["layers"], one | {"layer": layer}
    yield BY_NAME["ngrams"], one | {"prompt": ""}
    yield from pages(explorer, states)
    for word in explorer.views[0].frequent_words():
        yield BY_NAME["neighbours"], one | {"word": word, "top": 20}


def pages(explorer: Explorer, states: int) -> Iterator[Request]:
    """The first page of the list of states, and the most frequent states."""
    page = {"model": 0, "offset": 0, "limit": PAGE, "query": "", "sort": "occupancy"}
    yield BY_NAME["states"], page
    for offset in range(0, states, MOST_STATES):
        try:
            found: Answer = explorer.answer(BY_NAME["states"], page | {"offset": offset, "limit": MOST_STATES})
        except TrellisError:
            return
        for item in found["items"][: states - offset]:
            yield BY_NAME["state"], {"id": item["id"], "model": 0}


def key_of(endpoint: Endpoint, given: dict[str, Any]) -> str:
    """The key of a request in the table."""
    if endpoint.method == "POST":
        return f"POST {endpoint.path} {json.dumps(given, ensure_ascii=False, separators=(',', ':'))}"
    in_path = {name for name in given if f"{{{name}}}" in endpoint.path}
    query = urlencode({name: value for name, value in given.items() if name not in in_path})
    return f"GET {endpoint.path.format(**given)}" + (f"?{query}" if query else "")
