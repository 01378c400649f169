"""metrics.jsonl: one line of figures now and then, readable while the training runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TextIO

from trellis.storage import atomic_write, explained

VALID_PPL, VALID_ERROR = "valid_ppl", "valid_error"  # perplexity; percentage of the tags that are wrong


class MetricsFile:
    """Appends JSON lines; opening it keeps the first `lines` and cuts what a killed training wrote after them."""

    def __init__(self, path: Path, lines: int) -> None:
        self.path = path
        kept = path.read_bytes().splitlines(keepends=True)[:lines] if path.exists() else []
        with atomic_write(path) as file:
            file.writelines(kept)
        self.file: TextIO = path.open("a", encoding="utf-8")

    def append(self, **figures: float | None) -> None:
        """Write one line and hand it to the system; numbers that JSON does not know become strings."""
        line = {name: str(value) if _is_odd(value) else value for name, value in figures.items()}
        with explained(self.path, "check the free space"):
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
