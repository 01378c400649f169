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
def page_of(browser: Any, **options: Any) -> Iterator[Any]:
    """A page; afterwards, fails if the page has raised an error or written one to the console."""
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
    if errors:
        pytest.fail("; ".join(errors))


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
    found = [f"{name}: {where}" for name, where in page.evaluate(CHECKS)]
    if axe := find_axe():
        page.evaluate(axe.read_text(encoding="utf-8"))  # not a <script>, which the page's policy forbids
        for one in page.evaluate("part => axe.run(part)", part)["violations"]:
            if one["impact"] in SERIOUS:
                found += [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for node in one["nodes"]]
    return found


CHECKS = """() => {
  const roots = [document];
  for (const each of document.querySelectorAll('*')) if (each.shadowRoot) roots.push(each.shadowRoot);
  const all = (selector) => roots.flatMap((root) => [...root.querySelectorAll(selector)]);
  const shown = (each) => each.getClientRects().length > 0 && getComputedStyle(each).visibility !== 'hidden';
  const found = [];
  const report = (rule, each) => found.push([rule, each.outerHTML.slice(0, 160)]);
  const named = (each) => (each.getAttribute('aria-label') || each.textContent || each.title || '').trim() || each.labels?.length
    || each.getAttribute('aria-labelledby');
  for (const each of all('button, a[href], input, select, textarea, [role=button], canvas, svg[role=img], nav')) {
    if (shown(each) && !named(each)) report('no name', each);
  }
  for (const each of all('[aria-labelledby]')) {
    if (!each.getRootNode().getElementById(each.getAttribute('aria-labelledby'))) report('label that does not exist', each);
  }
  const seen = new Map();
  for (const each of all('[id]')) {
    const root = each.getRootNode();
    if (!seen.has(root)) seen.set(root, new Set());
    if (seen.get(root).has(each.id)) report('id used twice', each);
    seen.get(root).add(each.id);
  }
  const level = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => { const [r, g, b] = rgb.map((c) => level(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const colour = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const ground = (each) => {
    for (let up = each; up; up = up.parentElement ?? up.getRootNode().host) {
      const [r, g, b, a = 1] = colour(getComputedStyle(up).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a > 0) return null;
    }
    return [255, 255, 255];
  };
  for (const each of all('p, a, b, small, span, td, th, li, button, label, h1, h2, h3, dt, dd, summary, code, em')) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const style = getComputedStyle(each), behind = ground(each);
    if (!own || !shown(each) || !behind || each.disabled || each.closest('.unseen')) continue;
    const [a, b] = [light(colour(style.color).slice(0, 3)), light(behind)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) report(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`, each);
  }
  return found;
}"""
