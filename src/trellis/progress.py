"""Progress reports: a rich bar in a terminal, plain lines elsewhere, nothing if quiet."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trellis.errors import printable

LINE_INTERVAL = 10.0  # seconds between plain lines

_quiet = False


def set_quiet(quiet: bool = True) -> None:
    """Silence (or restore) all progress reports."""
    global _quiet
    _quiet = quiet


class Progress:
    """The interface of progress reports; this base class prints nothing."""

    def __init__(self, description: str, total: float | None, unit: str) -> None:
        self.description, self.total, self.unit = printable(description), total, unit
        self.done, self.fields = 0.0, dict[str, object]()

    @classmethod
    @contextmanager
    def hidden(cls) -> Iterator["Progress"]:
        """A report that prints nothing."""
        yield cls("", None, "")

    def advance(self, n: float = 1) -> None:
        """Count `n` more units as done."""
        self.done += n
        self.show()

    def update(self, **fields: object) -> None:
        """Show these named figures (step, perplexity, ...) next to the count."""
        self.fields.update(fields)
        self.show()

    def figures(self) -> str:
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in self.fields.items()}
        return "  ".join(f"{name} {value}" for name, value in shown.items())

    def show(self, last: bool = False) -> None:
        pass


class _Lines(Progress):
    """Writes `description: done/total unit  name value ...` to stderr periodically, and at the end of a long job."""

    def __init__(self, description: str, total: float | None, unit: str) -> None:
        super().__init__(description, total, unit)
        self.next_line = self.first_line = time.monotonic() + LINE_INTERVAL

    def show(self, last: bool = False) -> None:
        now = time.monotonic()
        if now >= (self.first_line if last else self.next_line):
            self.next_line = now + LINE_INTERVAL
            goal = "" if self.total is None else f"/{self.total:,.0f}"
            done = f"{self.description}: {self.done:,.0f}{goal} {self.unit}"
            sys.stderr.write(f"{done}  {self.figures()}".rstrip() + "\n")


class _Bar(Progress):
    """One row of a rich display shared by nested bars; the outermost bar opens and closes it."""

    display: Any = None

    def __init__(self, description: str, total: float | None, unit: str) -> None:
        from rich import progress as rich
        from rich.console import Console
        from rich.markup import escape

        super().__init__(description, total, unit)
        self.outermost = _Bar.display is None
        if self.outermost:
            texts = "{task.description} {task.completed:,.0f} {task.fields[unit]}", "{task.fields[figures]}"
            columns = rich.BarColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), *texts
            _Bar.display = rich.Progress(*columns, console=Console(stderr=True))
            _Bar.display.start()
        self.task = _Bar.display.add_task(escape(self.description), total=total, unit=unit, figures="")

    def show(self, last: bool = False) -> None:
        _Bar.display.update(self.task, completed=self.done, figures=self.figures(), visible=self.outermost or not last)
        if last and self.outermost:
            _Bar.display.stop()
            _Bar.display = None


@contextmanager
def progress(description: str, total: float | None = None, unit: str = "") -> Iterator[Progress]:
    """Report progress on a job of `total` units (unknown if None) while the block runs."""
    drawable = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
    reporter = (Progress if _quiet else _Bar if drawable else _Lines)(description, total, unit)
    try:
        yield reporter
    finally:
        reporter.show(last=True)
