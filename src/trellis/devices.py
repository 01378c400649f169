"""Where tensors live."""

from __future__ import annotations

import re

import torch

from trellis.errors import TrellisError


def choose_device(name: str) -> str:
    """auto: the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") and not re.fullmatch(r"cuda:\d+", name):
        raise TrellisError(f"device is {name!r}; use auto, cpu or cuda.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise TrellisError(f'device is {name!r}, but torch sees no GPU here; use device = "auto" or "cpu".')
    return name
