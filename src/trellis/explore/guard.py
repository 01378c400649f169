"""Checks of every request before it reaches the explorer, and the headers of every response.

A page of another site may send requests to a local server. All of these are refused: the headers `Origin`,
`Sec-Fetch-Site` and `Host` reveal them. Only the page itself may be opened by a link on another site, which cannot read
it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.responses import JSONResponse, RedirectResponse, Response

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
METHODS = "GET", "HEAD", "POST"
HTTP = 80  # the port of an address without one
COOKIE = "trellis_token_{}"  # with the port, since browsers send a cookie to all ports of a host
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class Guard:
    """ASGI middleware. `hosts` are the accepted host names. If None, any name is accepted, and the token protects the
    server."""

    def __init__(self, app: App, hosts: Collection[str] | None = LOOPBACK, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        response = self.refusal(scope, headers) or self.redirect(scope, headers)
        await (response or self.app)(scope, receive, guarded)

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """The response to a request that is refused; None if it is accepted."""
        if scope["method"] not in METHODS:
            return refused(405, "Only GET and POST requests are answered.")
        host = headers.get("host", "")
        if self.hosts is not None and host_name(host) not in self.hosts:
            return refused(403, "The Host header of the request is not an address of this server.")
        origin = headers.get("origin")
        if origin is not None and urlsplit_safe(origin) != host:
            return refused(403, "The request comes from a page of another site.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opens_page(scope, headers):
            return refused(403, "The request comes from a page of another site.")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return refused(415, "The body of a POST request must be application/json.")
        if self.token is not None and not self.knows_token(scope, headers):
            return refused(401, "The address lacks the token that 'trellis explore' printed.")
        return None

    def knows_token(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether the query string, a cookie or the Authorization header has the token."""
        given = [query_token(scope), headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(cookie_name(headers))
        except CookieError:
            cookie = None
        given += [] if cookie is None else [cookie.value]
        wanted = str(self.token).encode()
        return any(secrets.compare_digest(one.encode("utf-8", "replace"), wanted) for one in given)

    def redirect(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """A redirect from the address with the token to the same page without it, with a cookie.

        The cookie is not strict: a strict cookie would not be sent if the page was opened by a link."""
        if self.token is None or scope["path"] != "/" or not query_token(scope):
            return None
        response = RedirectResponse("/", 303)
        response.set_cookie(cookie_name(headers), self.token, httponly=True, samesite="lax")
        return response


def opens_page(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether the request opens the page in a window of its own."""
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return opened and scope["method"] == "GET" and scope["path"] == "/"


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of the cookie that holds the access token. It contains the port of the Host header."""
    try:
        return COOKIE.format(urlsplit(f"//{headers.get('host', '')}").port or HTTP)
    except ValueError:
        return COOKIE.format(HTTP)


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def urlsplit_safe(origin: str) -> str:
    """The host and port of an Origin header; empty if it is not an http or https origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in ("http", "https") else ""


def query_token(scope: Scope) -> str:
    """The token in the query string; empty if there is no token, or if there are too many fields."""
    try:
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=100)
    except ValueError:
        return ""
    return given.get("token", [""])[0]


def refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status)
