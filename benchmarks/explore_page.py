"""The explorer's page in a headless Chromium: seconds until it first paints something, and until it shows a trellis."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from benchmarks.report import emit

LIMIT = 1.0  # seconds until the first paint
OPENED = 5  # times that the page is opened
WAIT = 120_000  # ms
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@contextmanager
def served(path: str) -> Iterator[str]:
    """The address of `trellis explore` in a process of its own, once it has loaded the model."""
    command = [sys.executable, "-m", "trellis", "explore", path, "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        finally:
            process.terminate()


def opened(browser: Any, address: str, text: str) -> tuple[float, float]:
    """Seconds until the first paint, and until the trellis of a sentence is there, in a window without a cache."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}#/sentence?text={quote(text)}")
    page.locator(".cells circle").first.wait_for(timeout=WAIT)
    shown, painted = page.evaluate("performance.now()"), page.evaluate(PAINT)
    context.close()
    return painted / 1e3, shown / 1e3


def measure_page(bench: str, name: str, path: str, text: str) -> None:
    """Open the page several times; the first time, the server has just loaded the model."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("TRELLIS_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright, served(path) as address:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        times = [opened(browser, address, text) for _ in range(OPENED)]
        browser.close()
    report = {"first time": times[0], "later": sorted(times[1:])[len(times) // 2 - 1]}
    for when, (painted, shown) in report.items():
        emit(bench, name, f"first paint, {when}", painted, "limit", LIMIT, LIMIT / painted, "s")
        emit(bench, name, f"trellis of a sentence in the page, {when}", shown, "-", None, None, "s")
