"""The server answers only its own page: host, origin, token, method, size and time; hostile text stays text."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="starlette is not installed")

import trellis
from corpora import hmm
from fuzz.asgi import ask
from running import run
from trellis.cli.commands import explore as explore_command
from trellis.errors import TrellisError
from trellis.explore import server
from trellis.explore.endpoints import ENDPOINTS
from trellis.explore.explorer import Explorer
from trellis.explore.guard import HEADERS, cookie_name
from trellis.explore.server import LARGEST_BODY, application, static_files
from trellis.explore.turns import BusyError, Turns
from trellis.explore.views import views_of

SENTENCE = {"text": "the cat sees"}
HOSTILE = ["<script>alert(1)</script>", "\x1b]0;owned\x07", "</title>", "'\"><img", "\u202egnp", "a\x00b", "../../etc"]
TOKEN = "secret"
COOKIE = cookie_name({"host": "example.org"})
OPENED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.fixture(scope="module")
def app() -> Any:
    return application(Explorer([views_of(hmm())], "1.0"))


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:80"])
def test_local_names_are_accepted(app: Any, host: str) -> None:
    assert ask(app, "GET", "/api/about", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil@127.0.0.1.x", "[::1", "0.0.0.0"])
def test_a_rebound_name_is_refused(app: Any, host: str) -> None:
    reply = ask(app, "GET", "/api/about", host=host)
    assert (reply.status, list(reply.json)) == (403, ["error"])


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://[::1"},
        {"origin": "file://"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_are_refused(app: Any, headers: dict[str, str]) -> None:
    assert ask(app, "POST", "/api/score", SENTENCE, headers).status == 403
    assert ask(app, "GET", "/api/about", headers=headers).status == 403


def test_a_link_on_another_page_opens_this_one(app: Any) -> None:
    assert ask(app, "GET", "/", headers=OPENED).status == 200
    assert ask(app, "GET", "/api/about", headers=OPENED).status == 403
    assert ask(app, "POST", "/", SENTENCE, OPENED).status == 403
    for wrong in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}, {"origin": "http://evil.example"}):
        assert ask(app, "GET", "/", headers=OPENED | wrong).status == 403


def test_servers_at_two_ports_have_two_cookies() -> None:
    names = {cookie_name({"host": host}) for host in ("a:8000", "a:8001", "[::1]:8002", "a", "a:99999")}
    assert len(names) == 4
    guarded = application(Explorer([views_of(hmm())]), None, TOKEN)
    own, other = (f"{cookie_name({'host': host})}={TOKEN}" for host in ("a:8000", "a:8001"))
    assert ask(guarded, "GET", "/api/about", headers={"cookie": own}, host="a:8000").status == 200
    assert ask(guarded, "GET", "/api/about", headers={"cookie": other}, host="a:8000").status == 401


def test_the_own_page_is_answered(app: Any) -> None:
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert ask(app, "POST", "/api/score", SENTENCE, own).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "WHATEVER"])
def test_other_methods_are_refused(app: Any, method: str) -> None:
    assert ask(app, method, "/api/about").status == 405


def test_a_form_of_another_page_cannot_post(app: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert ask(app, "POST", "/api/score", SENTENCE, {"content-type": kind}).status == 415
    assert ask(app, "POST", "/api/score", SENTENCE, {"content-type": "application/json; charset=utf-8"}).status == 200


def test_without_the_token_nothing_is_answered() -> None:
    app = application(Explorer([views_of(hmm())]), None, TOKEN)
    paths = ["/", "/api/about", "/api/openapi.json", "/nothing"]
    for headers in ({}, {"cookie": f"{COOKIE}=wrong"}, {"authorization": "Bearer secre"}, {"cookie": "a=\x7f;=;"}):
        for path in paths:
            assert ask(app, "GET", path, headers=headers, host="example.org").status == 401
    assert ask(app, "GET", "/api/about?token=sécret", host="example.org").status == 401
    assert ask(app, "GET", f"/?{'a=1&' * 101}token={TOKEN}", host="example.org").status == 401
    for headers in ({"cookie": f"x=1; {COOKIE}={TOKEN}"}, {"authorization": f"Bearer {TOKEN}"}):
        assert ask(app, "GET", "/api/about", headers=headers, host="example.org").status == 200
    assert ask(app, "GET", f"/api/about?token={TOKEN}", host="example.org").status == 200
    opened = ask(app, "GET", f"/?token={TOKEN}", host="example.org")
    assert (opened.status, opened.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=lax"} <= {part.strip() for part in opened.headers["set-cookie"].split(";")}


def test_every_response_has_the_headers(app: Any) -> None:
    for path, status in (("/api/about", 200), ("/nothing", 404), ("/api/states/99", 400), ("/api/smooth", 405)):
        reply = ask(app, "GET", path)
        assert reply.status == status
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_large_bodies_are_refused(app: Any) -> None:
    large = [b'{"text": "'] + [b"a" * 1000] * (LARGEST_BODY // 1000 + 1)
    assert ask(app, "POST", "/api/score", pieces=large).status == 413
    reply = ask(app, "POST", "/api/score", {"text": "a " * 1500})
    assert (reply.status, "at most 2,000" in reply.json["error"]) == (400, True)
    long_text = ask(app, "POST", "/api/score", {"text": "a " * 900})
    assert (long_text.status, "at most 300" in long_text.json["error"]) == (400, True)
    for path, name in (("/api/predict", "text"), ("/api/sample", "prompt")):
        assert "at most 300" in ask(app, "POST", path, {name: "a " * 900}).json["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"\xff", b"null", b'{"text": 1}', b'{"text": "a", "x": 1}', b'{"text": "a", "model": 1.5}',
     b'{"text": "a", "model": true}', b'{"text": "\\ud800"}', b"[" * 5000, b'{"text": "a", "model": 1e999}',
     b'{"text": "", "model": 0}', b'{"text": "a\\nb"}', b'{"text": "a", "model": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_wrong_bodies_are_one_sentence(app: Any, body: bytes) -> None:
    reply = ask(app, "POST", "/api/score", pieces=[body])
    assert reply.status == 400
    assert reply.json["error"].endswith(".")
    assert "\n" not in reply.json["error"]


def test_a_slow_body_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, app: Any) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)

    async def never(request: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    monkeypatch.setattr(server, "body_of", never)
    assert ask(app, "POST", "/api/score", SENTENCE).status == 413


def test_a_slow_query_does_not_hold_others() -> None:
    turns, free = Turns(seconds=0.2), threading.Event()
    found = views_of(hmm())
    found.score = lambda text: {"waited": free.wait(20)}  # type: ignore[attr-defined]
    app = application(Explorer([found]), turns=turns)
    with ThreadPoolExecutor(3) as clients:
        replies = list(clients.map(lambda _: ask(app, "POST", "/api/score", SENTENCE), range(3)))
        assert [reply.status for reply in replies] == [503] * 3
        assert "seconds" in replies[0].json["error"]
        turns.seconds = 20.0
        assert ask(app, "POST", "/api/predict", {"text": "the"}).status == 200  # in the lane that is free
        free.set()


def test_a_query_that_takes_too_long_is_stopped() -> None:
    turns, ended = Turns(seconds=0.1, lanes=1), threading.Event()
    found, deadline = views_of(hmm()), time.monotonic() + 20

    def score(text: str) -> Any:
        try:
            while time.monotonic() < deadline:
                torch.ones(4).sum()
        finally:
            ended.set()

    found.score = score  # type: ignore[attr-defined]
    app = application(Explorer([found]), turns=turns)
    assert ask(app, "POST", "/api/score", SENTENCE).status == 503
    turns.seconds = 20.0
    assert ask(app, "POST", "/api/predict", {"text": "the"}).status == 200
    assert ended.is_set()
    assert time.monotonic() < deadline


def test_a_map_that_fails_is_not_waited_for() -> None:
    found = views_of(hmm())
    found.background = lambda turn: 1 / 0  # type: ignore[method-assign]
    explorer = Explorer([found])
    assert ask(application(explorer), "GET", "/api/map").status == 202
    explorer.prepare(lambda work: work())
    reply = ask(application(explorer), "GET", "/api/map")
    assert (reply.status, reply.json["error"]) == (
        400, "The map of the states could not be computed: ZeroDivisionError."
    )  # fmt: skip


def test_only_so_many_queries_wait() -> None:
    async def two() -> None:
        turns = Turns(most=1)
        begun, free = threading.Event(), threading.Event()
        first = asyncio.ensure_future(turns.answer(lambda: begun.set() or free.wait(20)))
        await asyncio.to_thread(begun.wait, 20)
        with pytest.raises(BusyError, match="Too many questions"):
            await turns.answer(lambda: None)
        free.set()
        assert await first is True

    asyncio.run(two())


def test_clients_at_the_same_time_get_the_answers_of_one(app: Any) -> None:
    texts = ["the cat", "a dog sees", "cat", "the dog sees the cat"] * 5
    alone = [ask(app, "POST", "/api/smooth", {"text": text}).body for text in texts]
    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(lambda text: ask(app, "POST", "/api/smooth", {"text": text}).body, texts)) == alone


def test_hostile_words_stay_text() -> None:
    text = [[word, "and", word] for word in HOSTILE] * 10
    model = trellis.train(text, states=2, epochs=1, min_count=1, device="cpu").model
    found = views_of(model, HOSTILE[1])
    found.background(lambda work: work())
    app = application(Explorer([found]))
    state = ask(app, "GET", "/api/states/0")
    assert {one["word"] for one in state.json["words"]} & set(HOSTILE)
    assert state.headers["content-type"] == "application/json"
    assert b"\x1b" not in state.body
    for body in ({"text": HOSTILE[0]}, {"text": "a\x1b[2J"}):
        reply = ask(app, "POST", "/api/score", body)
        assert reply.headers["content-type"] == "application/json"
        assert b"\x1b" not in reply.body
        assert reply.status == 400 or "\x1b" not in reply.json["command"]
    wrong = ask(app, "GET", f"/api/neighbours?model={HOSTILE[0]}")
    assert (wrong.status, wrong.headers["content-type"]) == (400, "application/json")
    assert "\x1b" not in ask(app, "GET", "/api/about").json["models"][0]["name"]


@pytest.mark.parametrize("path", ["/../pyproject.toml", "//etc/passwd", "/static/../server.py", "/%2e%2e/server.py",
                                  "/index.html/../../server.py", "/explore.py", "/server.py", "/\x00"])  # fmt: skip
def test_no_path_reaches_the_file_system(app: Any, path: str) -> None:
    assert ask(app, "GET", path).status == 404


def test_the_files_of_the_page_are_served(app: Any) -> None:
    files = static_files()
    assert {"/", "/index.html"} <= set(files)
    for path, (content, kind) in files.items():
        reply = ask(app, "GET", path)
        assert (reply.status, reply.body, reply.headers["content-type"]) == (200, content, kind)


def test_the_openapi_document_describes_every_endpoint(app: Any) -> None:
    found = ask(app, "GET", "/api/openapi.json").json
    described = {(path, method.upper()) for path, methods in found["paths"].items() for method in methods}
    assert described == {(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}
    body = found["paths"]["/api/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) >= {"contains", "regex", "words", "best"}
    assert found["paths"]["/api/states/{id}"]["get"]["parameters"][0]["in"] == "path"


def test_the_command_serves_a_model() -> None:
    line = [sys.executable, "-m", "trellis", "explore", "demo", "--no-browser"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
            with urllib.request.urlopen(f"{address}api/about", timeout=60) as reply:
                assert json.load(reply)["models"][0]["states"] == 96
        finally:
            process.terminate()
            process.wait(60)


def test_misuse_of_the_command_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(TrellisError, match=r"Cannot listen at 127\.0\.0\.1"),
    ):
        explore_command.listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(TrellisError, match=r"Cannot listen at no\.such"):
        explore_command.listen("no.such.host.invalid", 0)
    assert run("explore", tmp_path / "none", "--no-browser") == 2
    assert "There is no model" in capsys.readouterr().err
    assert run("explore", "demo", "--port", "70000") == 2
    assert "is not a port" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run("explore", "demo") == 2
    assert "trellis-hmm[explore]" in capsys.readouterr().err


def test_addresses() -> None:
    assert explore_command.url("::1", 80, None) == "http://[::1]:80/"
    assert explore_command.url("0.0.0.0", 80, "t") == "http://0.0.0.0:80/?token=t"
