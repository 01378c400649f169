"""Random requests: every one is answered, or refused in one sentence. `python -m fuzz explore` sends many more."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("starlette", reason="starlette is not installed")

from corpora import fhmm, hmm
from fuzz.asgi import ask
from fuzz.explore import ACCEPTED, REFUSED, not_json, send, valid
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.server import application
from trellis.explore.views import views_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
MORE = st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MORE, inner, max_size=3))


@cache
def app() -> Any:
    both = [views_of(hmm()), views_of(fhmm())]
    for one in both:
        one.background(lambda work: work())
    return application(Explorer(both))


def check(status: int, body: bytes) -> None:
    assert status in ACCEPTED | REFUSED, body
    if status in REFUSED:
        sentence = json.loads(body)["error"]
        assert sentence.endswith(".")
        assert sentence.isprintable()
    else:
        json.loads(body, parse_constant=not_json)


@given(st.sampled_from(ENDPOINTS), st.integers(0, 1 << 32), st.dictionaries(st.text(max_size=8), VALUES, max_size=2),
       st.data())  # fmt: skip
@settings(max_examples=80)
def test_fields_of_any_value(endpoint: Endpoint, seed: int, more: dict[str, Any], data: st.DataObject) -> None:
    random = Random(seed)
    fields = {field.name: valid(field, random) for field in endpoint.fields}
    changed = data.draw(st.sets(st.sampled_from([*fields, "x"]), max_size=2))
    fields |= {name: data.draw(VALUES, label=name) for name in changed} | more
    reply = send(app(), endpoint, fields)
    check(reply.status, reply.body)


@given(st.sampled_from([endpoint for endpoint in ENDPOINTS if endpoint.method == "POST"]), st.binary(max_size=60))
@settings(max_examples=60)
def test_bodies_of_any_bytes(endpoint: Endpoint, body: bytes) -> None:
    reply = ask(app(), "POST", endpoint.path, pieces=[body])
    check(reply.status, reply.body)


@given(st.text(max_size=30), st.sampled_from(["GET", "HEAD", "POST"]))
@settings(max_examples=60)
def test_paths_of_any_text(path: str, method: str) -> None:
    reply = ask(app(), method, f"/{path}".encode("utf-8", "replace").decode())
    assert reply.status in ACCEPTED | REFUSED
