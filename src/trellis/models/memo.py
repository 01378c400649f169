"""Results that stay valid until a parameter changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

T = TypeVar("T")


class Memo:
    """Memoises what was computed from a module's parameters; nothing while gradients are recorded."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = module.parameters
        self.version: Any = None
        self.kept: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: computed again where it is needed."""
        return {"parameters": self.parameters, "version": None, "kept": {}}

    def __call__(self, name: str, compute: Callable[[], T]) -> T:
        if torch.is_grad_enabled():
            return compute()
        version = tuple((p._version, p.data_ptr()) for p in self.parameters())
        if self.version != version:
            self.version, self.kept = version, {}
        if name not in self.kept:
            self.kept[name] = compute()
        return cast(T, self.kept[name])
