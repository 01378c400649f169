"""metrics.jsonl: one line of metrics at a time, readable while training runs."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TextIO

from trellis.storage import atomic_write, explained

VALID_PPL, VALID_ERROR = "valid_ppl", "valid_error"  # perplexity, and percentage of wrong tags, on the validation set


class MetricsFile:
    """Records lines of metrics and appends them to a file, if there is one.

    When a file is opened, only its first `lines` lines are kept: a killed run wrote the later lines after its last
    checkpoint."""

    def __init__(self, path: Path | None, lines: int) -> None:
        self.path = path
        self.file: TextIO | None = None
        kept = path.read_bytes().splitlines(keepends=True)[:lines] if path is not None and path.exists() else []
        self.history = list(_readable(kept))
        if path is not None:
            with atomic_write(path) as file:
                file.writelines(kept)
            self.file = path.open("a", encoding="utf-8")

    def append(self, **figures: float | None) -> dict[str, Any]:
        """Append a line and flush it; infinities and NaN, which JSON lacks, become strings."""
        line = {name: str(value) if _is_odd(value) else value for name, value in figures.items()}
        self.history.append(line)
        if self.file is not None:
            with explained(self.path, "check the free space"):
                self.file.write(json.dumps(line) + "\n")
                self.file.flush()
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()


def _readable(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Parse lines of JSON; damaged lines are skipped."""
    for line in lines:
        with suppress(ValueError):
            yield dict(json.loads(line))


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
