"""What a command found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a command found: for machines, and for people."""

    data: Any
    show: Callable[[], None]
    exit_code: int = 0
