"""Requests to an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: Any, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None,
    host: str = "127.0.0.1:8000", pieces: list[bytes] | None = None,
) -> Reply:  # fmt: skip
    """One request. `body` is a JSON value; `pieces` are the raw bytes of a body instead."""
    path, _, query = target.partition("?")
    raw = pieces if pieces is not None else [] if body is None else [json.dumps(body).encode()]
    given = {"host": host} | ({"content-type": "application/json"} if method == "POST" else {}) | (headers or {})
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode("latin-1", "replace"), "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": piece, "more_body": True} for piece in raw]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], found, b"".join(one.get("body", b"") for one in sent if one is not start))
