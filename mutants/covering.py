"""The map from lines to tests: which lines a test executes, and the tests that execute a line."""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Container
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Recorder:
    """The lines of chosen files that are executed, by file."""

    def __init__(self, watched: set[str]) -> None:
        self.watched, self.lines = watched, defaultdict[str, set[int]](set)

    def start(self) -> None:
        threading.settrace(self.enter)
        sys.settrace(self.enter)

    def stop(self) -> dict[str, set[int]]:
        sys.settrace(None)
        threading.settrace(None)
        found, self.lines = self.lines, defaultdict(set)
        return dict(found)

    def enter(self, frame: FrameType, event: str, value: Any) -> Any:
        if frame.f_code.co_filename not in self.watched:
            return None
        lines = self.lines[frame.f_code.co_filename]
        lines.add(frame.f_lineno)

        def line(frame: FrameType, event: str, value: Any) -> Any:
            lines.add(frame.f_lineno)
            return line

        return line


class Monitor(Recorder):
    """The same with sys.monitoring (from Python 3.12 on): each line costs once per test."""

    def start(self) -> None:
        tool = sys.monitoring  # type: ignore[attr-defined]
        if tool.get_tool(tool.COVERAGE_ID) is None:
            tool.use_tool_id(tool.COVERAGE_ID, "mutants")
            tool.register_callback(tool.COVERAGE_ID, tool.events.LINE, self.executed)
        tool.set_events(tool.COVERAGE_ID, tool.events.LINE)
        tool.restart_events()

    def stop(self) -> dict[str, set[int]]:
        tool = sys.monitoring  # type: ignore[attr-defined]
        tool.set_events(tool.COVERAGE_ID, 0)
        found, self.lines = self.lines, defaultdict(set)
        return dict(found)

    def executed(self, code: CodeType, line: int) -> Any:
        if code.co_filename in self.watched:
            self.lines[code.co_filename].add(line)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]


def recorder(watched: set[str]) -> Recorder:
    return (Monitor if hasattr(sys, "monitoring") else Recorder)(watched)


class Covering:
    """The tests that execute a line: those in a file named after the module first, then the fastest."""

    def __init__(self, path: Path, known: Container[str]) -> None:
        """Read a map; `known` are the tests that still exist."""
        self.seconds: dict[str, float] = {}
        self.by_line = defaultdict[tuple[str, int], list[str]](list)
        self.by_file = defaultdict[str, list[str]](list)
        for text in path.read_text().splitlines():
            test = json.loads(text)
            if not test["passed"] or not test["lines"] or test["test"] not in known:
                continue
            self.seconds[test["test"]] = test["seconds"]
            for file, lines in test["lines"].items():
                self.by_file[file].append(test["test"])
                for line in lines:
                    self.by_line[file, line].append(test["test"])

    def tests(self, file: str, lines: range, imported: bool) -> list[str]:
        """The tests of any of these lines. If they are executed on import, those of the whole file; if none runs a
        function of it, those of its folder."""
        if imported:
            alike = [tests for one, tests in self.by_file.items() if Path(one).parent == Path(file).parent]
            found = set(self.by_file.get(file, [])) or set(chain(*alike))
        else:
            found = {test for line in lines for test in self.by_line[file, line]}
        return sorted(found, key=lambda test: (not _about(test, file), self.seconds[test], test))


def _about(test: str, file: str) -> bool:
    """Whether a test is in a file named after a module."""
    return Path(file).stem in Path(test.partition("::")[0]).stem
