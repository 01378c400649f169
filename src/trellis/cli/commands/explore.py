"""trellis explore"""

import argparse
import logging
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import Any

from trellis import __version__
from trellis.cli.arguments import add_device
from trellis.cli.console import Answer
from trellis.errors import TrellisError

SUMMARY = "explore one or two trained models in the browser"
EXAMPLE = "trellis explore demo"
LOCAL = "127.0.0.1", "localhost", "::1"
LARGEST_PORT = 65_535
MOST_CLIENTS = 64


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file, the folder of a run, or demo (included)")
    parser.add_argument("other", type=Path, nargs="?", help="a second model, to compare")
    add_device(parser)
    parser.add_argument("--port", type=port, default=0, help="port of the server (default: any free one)")
    parser.add_argument(
        "--host", default=LOCAL[0], help="address to listen at (default 127.0.0.1: this machine only); other addresses "
        "need the token that is printed"
    )  # fmt: skip
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {LARGEST_PORT}")
    return int(text)


def run(args: argparse.Namespace) -> Answer:
    try:
        import uvicorn

        from trellis.explore.server import application
    except ImportError as error:
        raise TrellisError("The explorer needs starlette and uvicorn: pip install 'trellis-hmm[explore]'.") from error
    from trellis.explore.explorer import Explorer
    from trellis.explore.guard import LOOPBACK

    paths = [path for path in (args.model, args.other) if path is not None]
    explorer = Explorer.open(paths, args.device, __version__)
    listener, token = listen(args.host, args.port), None if args.host in LOCAL else secrets.token_urlsafe(24)
    app = application(explorer, LOOPBACK if token is None else None, token)
    config = uvicorn.Config(app, log_level="error", limit_concurrency=MOST_CLIENTS, server_header=False)
    address = url(args.host, listener.getsockname()[1], token)
    print(address, flush=True)
    logging.info("Press Ctrl-C to stop.")
    if not args.no_browser:
        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[listener])
    return Answer({"url": address}, [])


def listen(host: str, number: int) -> socket.socket:
    """A socket that accepts connections at an address."""
    try:
        family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, number), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrellisError(f"Cannot listen at {host}, port {number}: {reason}; choose another one.") from error


def url(host: str, number: int, token: str | None) -> str:
    """The address of the page."""
    shown: Any = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{number}/" + (f"?token={token}" if token else "")
