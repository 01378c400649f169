"""Progress in its three styles."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from trellis import progress as module
from trellis.progress import progress, set_quiet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    set_quiet(False)
    yield
    set_quiet(False)


def run() -> None:
    with progress("train", 3, "steps") as outer:
        for step in range(3):
            with progress("evaluate") as inner:
                inner.advance(2)
            outer.update(step=step, ppl=100.0 / 3)
            outer.advance()


def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.0)
    run()
    assert capsys.readouterr().err.splitlines()[-1] == "train: 3/3 steps  step 2  ppl 33.33"


def test_short_jobs_print_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    run()
    assert "train" in terminal.getvalue()
    assert "33.33" in terminal.getvalue()
    assert module._Bar.display is None


def test_lines_where_rich_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.0)
    run()
    assert "train: 3/3 steps" in terminal.getvalue()


def test_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.0)
    set_quiet()
    run()
    assert capsys.readouterr().err == ""
