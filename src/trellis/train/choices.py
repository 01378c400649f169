"""Names in a configuration as what they stand for."""

from __future__ import annotations

from typing import Any

from trellis.config import suggestion
from trellis.errors import TrellisError


def choose(options: dict[str, Any], name: str, what: str) -> Any:
    """The option of that name, or one sentence about which there are."""
    if name not in options:
        raise TrellisError(f"{what} is {name!r}, which is not known{suggestion(name, options)}")
    return options[name]
