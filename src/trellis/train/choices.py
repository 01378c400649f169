"""Names in a configuration as what they stand for."""

from __future__ import annotations

import re
from typing import Any

import torch

from trellis.config import suggestion
from trellis.errors import TrellisError


def choose(options: dict[str, Any], name: str, what: str) -> Any:
    """The option of that name, or one sentence about which there are."""
    if name not in options:
        raise TrellisError(f"{what} is {name!r}, which is not known{suggestion(name, options)}")
    return options[name]


def choose_device(name: str) -> str:
    """auto: the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") and not re.fullmatch(r"cuda:\d+", name):
        raise TrellisError(f"device is {name!r}; use auto, cpu or cuda.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise TrellisError(f'device is {name!r}, but torch sees no GPU here; use device = "auto" or "cpu".')
    return name
