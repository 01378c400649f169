"""A headless Chromium for tests, and a check of accessibility. Without a browser or playwright, tests are skipped."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, AXE = "TRELLIS_CHROMIUM", "TRELLIS_AXE"  # environment variables: the browser, and axe.min.js
NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"
SERIOUS = "serious", "critical"
CHECKS = Path(__file__).with_name("checks.js")
WAIT = 90_000  # ms; a loaded machine needs seconds for the layout of the map


def find_browser() -> str:
    """The path of a Chromium; skips the test if there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")
    found = os.environ.get(CHROMIUM) or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip(f"there is no browser: install chromium, or set {CHROMIUM}")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, expected: str = "", **options: Any) -> Iterator[Any]:
    """A page; afterwards, fails if the page has raised an error or written one to the console, other than expected."""
    context = browser.new_context(**{"reduced_motion": "reduce", "viewport": {"width": 1200, "height": 900}} | options)
    page, errors = context.new_page(), []
    page.set_default_timeout(WAIT)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        yield page
    finally:
        context.close()
    if wrong := [error for error in errors if not expected or expected not in error]:
        pytest.fail("; ".join(wrong))


@contextmanager
def served(*paths: Any) -> Iterator[str]:
    """The address of a running server of the explorer."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[explore]'")
    from trellis.explore.explorer import Explorer
    from trellis.explore.server import application

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(Explorer.open(paths)), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)


def find_axe() -> Path | None:
    """axe.min.js, by an environment variable or in node_modules."""
    places = [os.environ.get(AXE, ""), "node_modules/axe-core/axe.min.js"]
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


def violations(page: Any, part: str = "html") -> list[str]:
    """Serious violations of accessibility rules: by axe-core where it is found, and by our own checks."""
    found = [f"{name}: {where}" for name, where in page.evaluate(CHECKS.read_text(encoding="utf-8"))]
    if axe := find_axe():
        page.evaluate(axe.read_text(encoding="utf-8"))  # not a <script>, which the page's policy forbids
        for one in page.evaluate("part => axe.run(part)", part)["violations"]:
            if one["impact"] in SERIOUS:
                found += [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for node in one["nodes"]]
    return found
