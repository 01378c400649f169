"""metrics.jsonl: one line of figures now and then, readable while the training runs."""

import json
import math
from pathlib import Path
from typing import Any, Self, TextIO

from trellis.storage import atomic_write, explained

VALID_PPL, VALID_ERROR = "valid_ppl", "valid_error"  # perplexity; percentage of the tags that are wrong


class MetricsFile:
    """Keeps lines of figures, and appends them to a file where there is one; opening it keeps its first `lines`, and
    cuts what a killed training wrote after them."""

    def __init__(self, path: Path | None, lines: int) -> None:
        self.path = path
        self.file: TextIO | None = None
        kept = path.read_bytes().splitlines(keepends=True)[:lines] if path is not None and path.exists() else []
        self.history: list[dict[str, Any]] = [json.loads(line) for line in kept]
        if path is not None:
            with atomic_write(path) as file:
                file.writelines(kept)
            self.file = path.open("a", encoding="utf-8")

    def append(self, **figures: float | None) -> dict[str, Any]:
        """Add a line and hand it to the system; numbers that JSON does not know become strings."""
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


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
