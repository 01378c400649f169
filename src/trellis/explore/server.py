"""The web server of the explorer: an ASGI application for the API and the files of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from threading import Thread
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trellis.errors import LIMITS, TrellisError, limit_reached
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.guard import LOOPBACK, Guard, refused
from trellis.explore.openapi import document
from trellis.explore.turns import BusyError, Turns
from trellis.explore.views import encoded

LARGEST_BODY = 1 << 16  # bytes
BODY_SECONDS = 10.0  # to send a body
MOST_FIELDS = 20  # of a query string
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


def application(
    explorer: Explorer, hosts: Collection[str] | None = LOOPBACK, token: str | None = None, turns: Turns | None = None
) -> Starlette:
    """The ASGI application. It answers only requests for `hosts` (any host if None) and, if there is a token, only
    requests with that token."""
    queue = turns or Turns(lanes=explorer.lanes)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        Thread(target=explorer.prepare, args=(queue.run,), name="explore-background", daemon=True).start()
        yield
        queue.close()

    routes = [Route(one.path, handler(explorer, queue, one), methods=[one.method]) for one in ENDPOINTS]
    description = document(explorer.version)
    routes.append(Route("/api/openapi.json", lambda request: JSONResponse(description)))
    routes += [Route(path, sender(*file)) for path, file in static_files().items()]
    errors: Any = {404: not_found, 405: wrong_method}
    guard = Middleware(Guard, hosts=hosts, token=token)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=errors, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def handler(explorer: Explorer, queue: Turns, endpoint: Endpoint) -> Callable[[Request], Any]:
    """The function that answers the requests of an endpoint."""

    async def respond(request: Request) -> Response:
        try:
            given = await fields_of(request)
            ask = partial(answer, explorer, endpoint, given)
            status, body = await (queue.answer(ask) if endpoint.queued else asyncio.to_thread(ask))
            return Response(body, status, media_type="application/json")
        except TrellisError as error:
            return refused(400, str(error))
        except TooLargeError as error:
            return refused(413, str(error))
        except BusyError as error:
            return refused(503, str(error))
        except LIMITS as error:
            if sentence := limit_reached(error):
                return refused(400, sentence)
            raise

    return respond


def answer(explorer: Explorer, endpoint: Endpoint, given: dict[str, Any]) -> tuple[int, bytes]:
    return encoded(explorer.answer(endpoint, given))


class TooLargeError(Exception):
    """The body of a request is too large, or was sent too slowly."""


async def fields_of(request: Request) -> dict[str, Any]:
    """The fields of a request: from its path, its query string and its JSON body."""
    if len(request.query_params) > MOST_FIELDS:
        raise TrellisError(f"The request has more than {MOST_FIELDS} fields.")
    given: dict[str, Any] = {name: value for name, value in request.query_params.items() if name != "token"}
    given |= request.path_params
    if request.method != "POST":
        return given
    try:
        body = json.loads(await asyncio.wait_for(body_of(request), BODY_SECONDS) or b"{}")
    except TimeoutError:
        raise TooLargeError(f"The body of the request did not arrive within {BODY_SECONDS:g} seconds.") from None
    except (ValueError, RecursionError) as error:
        raise TrellisError("The body of the request is not JSON.") from error
    if not isinstance(body, dict):
        raise TrellisError("The body of the request must be a JSON object.")
    return given | body


async def body_of(request: Request) -> bytes:
    """The body of a request, of limited size."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST_BODY:
                raise TooLargeError(f"The body of a request may have at most {LARGEST_BODY:,} bytes.")
    except ClientDisconnect:
        raise TrellisError("The client has gone away.") from None
    return bytes(body)


def static_files() -> dict[str, tuple[bytes, str]]:
    """The contents and types of the page's files, by path. Only these are served: no path of a request is ever used to
    open a file."""
    found, root = {}, resources.files("trellis.explore") / "static"
    folders = [("", root)] if root.is_dir() else []
    while folders:
        prefix, folder = folders.pop()
        for entry in folder.iterdir():
            path, suffix = f"{prefix}/{entry.name}", "." + entry.name.rpartition(".")[2]
            if entry.is_dir():
                folders.append((path, entry))
            elif suffix in KINDS:
                found[path] = entry.read_bytes(), KINDS[suffix]
    return found | ({"/": found["/index.html"]} if "/index.html" in found else {})


def sender(content: bytes, kind: str) -> Callable[[Request], Response]:
    return lambda request: Response(content, media_type=kind)


def not_found(request: Request, error: Exception) -> Response:
    return refused(404, "There is nothing at this address; /api/openapi.json lists the API.")


def wrong_method(request: Request, error: Exception) -> Response:
    return refused(405, "This address is asked with the other method, GET or POST.")
