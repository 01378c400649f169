"""Requests to the explorer: valid and absurd fields, bodies, paths and headers; none has the status 500."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from fuzz.asgi import Reply, ask
from fuzz.harness import FindingError, complaint
from fuzz.mutations import NUMBERS, STRINGS, any_text, any_value
from fuzz.small import WORDS, model
from trellis.errors import TrellisError
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.fields import Choice, Field, Flag, Integer, Span, Texts
from trellis.explore.server import application
from trellis.explore.views import views_of

MODELS = ["hmm", "hmm brown", "hmm neural", "fhmm", "lds", "ngram", "lstm", "hmm-tagger", "crf"]
PATTERNS = ["(the | a) .*", "[a-z ]*", "a{0,99999}", "(", "\\", "(a|b)*c", "___{1,3} cat", "the ___", "(?=a)", "[^a]*"]
ACCEPTED, REFUSED = {200, 202, 303}, {400, 401, 403, 404, 405, 413, 415, 503}


class Target:
    """Ask the servers of small models of several families."""

    def __init__(self, folder: Path) -> None:
        found = [views_of(model(name), name) for name in MODELS]
        for one in found:
            one.background(lambda work: work())
        pairs = [[one] for one in found] + [[found[0], found[5]], [found[0], found[4]]]
        self.apps = [application(Explorer(pair)) for pair in pairs]

    def honest(self) -> None:
        """Every endpoint of every server."""
        for app in self.apps:
            for endpoint in ENDPOINTS:
                for seed in range(3):
                    send(app, endpoint, {f.name: valid(f, Random(seed)) for f in endpoint.fields})

    def case(self, random: Random) -> None:
        app = self.apps[random.choice([0, 1, 2, *range(len(self.apps))])]  # HMMs have the most answers
        endpoint = random.choice(ENDPOINTS)
        make = random.choice([*[request] * 7, raw_body, other_path, headers])
        checked(make(app, endpoint, random))


def checked(reply: Reply) -> None:
    """Raise a finding unless the reply is an answer, or an error in one sentence."""
    if reply.status not in ACCEPTED | REFUSED:
        raise FindingError(f"status {reply.status}: {reply.body[:200]!r}")
    if reply.status in REFUSED:
        sentence = reply.json["error"]
        if wrong := complaint(sentence):
            raise FindingError(f"{wrong}: {sentence[:200]!r}")
        raise TrellisError(sentence)
    if reply.headers["content-type"] == "application/json":
        json.loads(reply.body, parse_constant=not_json)


def not_json(name: str) -> None:
    raise FindingError(f"{name} in an answer")


def send(app: Any, endpoint: Endpoint, given: dict[str, Any]) -> Reply:
    """A request with these fields."""
    if endpoint.method == "POST":
        return ask(app, "POST", endpoint.path, given)
    path = endpoint.path.replace("{id}", str(given.get("id", 0)).replace("/", "").replace("?", "") or "0")
    return ask(app, "GET", f"{path}?{'&'.join(f'{k}={v}' for k, v in given.items() if k != 'id')}")


def request(app: Any, endpoint: Endpoint, random: Random) -> Reply:
    """Fields that are valid, absurd, missing or unknown."""
    given = {field.name: valid(field, random) for field in endpoint.fields}
    for name in list(given) if random.random() < 0.4 else []:
        kind = random.random()
        if kind < 0.1:
            given[name] = as_json(any_value(random))
        elif kind < 0.2:
            given[name] = random.choice([*NUMBERS, *STRINGS])
        elif kind < 0.4:
            del given[name]
    if random.random() < 0.05:
        given[random.choice(STRINGS) or "x"] = 1
    return send(app, endpoint, {name: as_json(value) for name, value in given.items()})


def valid(field: Field, random: Random) -> Any:
    """A value that a field may have."""
    if field.name == "model":
        return random.choice([0, 0, 0, 1])
    if isinstance(field, Integer):
        return random.randint(field.least, min(field.most, field.least + 12))
    if isinstance(field, Flag):
        return random.random() < 0.3
    if isinstance(field, Choice):
        return random.choice(field.choices)
    if isinstance(field, Texts):
        return [any_text(random, WORDS, 3) for _ in range(random.choice([0, 0, 1, 2]))]
    if isinstance(field, Span):
        return sorted(random.randint(0, 10) for _ in range(2))
    if field.name in ("regex", "template"):
        return random.choice(["", "", "", *PATTERNS])
    return any_text(random, [*WORDS, "___"])


def as_json(value: Any) -> Any:
    """A value that JSON can hold, or its text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def raw_body(app: Any, endpoint: Endpoint, random: Random) -> Reply:
    """Bytes that may not be JSON."""
    good = json.dumps({field.name: valid(field, random) for field in endpoint.fields}).encode()
    body = bytearray(good)
    for _ in range(random.randint(1, 4)):
        place = random.randint(0, len(body))
        body[place : place + random.randint(0, 3)] = random.randbytes(random.randint(0, 3))
    return ask(app, "POST", endpoint.path.replace("{id}", "1"), pieces=[bytes(body)])


def other_path(app: Any, endpoint: Endpoint, random: Random) -> Reply:
    """An address that may not exist."""
    pieces = ["/", "..", "api", "states", "%2e", "index.html", "map", "?", "&model=", "=", "1", "\x00", "é", *WORDS[:3]]
    path = "/" + "".join(random.choice(pieces) for _ in range(random.randint(0, 6)))
    return ask(app, random.choice(["GET", "GET", "HEAD", "POST", "PUT", "X"]), path)


def headers(app: Any, endpoint: Endpoint, random: Random) -> Reply:
    """Headers of any content."""
    names = ["origin", "host", "cookie", "content-type", "sec-fetch-site", "authorization", "content-length"]
    chosen = {random.choice(names): random.choice(STRINGS).encode("ascii", "replace").decode() for _ in range(2)}
    body = {"text": "the cat"} if endpoint.method == "POST" else None
    return ask(app, endpoint.method, endpoint.path.replace("{id}", "1"), body, chosen)
