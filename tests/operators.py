"""Transitions out of unnormalised weights, and the tensors of results, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trellis.transitions import Banded, LowRank
from trellis.transitions.banded import band_probs
from trellis.transitions.lowrank import normalise_features


def of_features(log_left: Tensor, log_right: Tensor, dtype: torch.dtype | None = None) -> tuple[LowRank, Tensor]:
    """The transition of log phi(u_z) [K, F] and log phi(v_z') [K, F], and log N_z [K]."""
    into, out, log_norm = normalise_features(log_left, log_right)
    return LowRank(into, out, dtype), log_norm


def of_band(log_weights: Tensor, kept: Tensor | None = None) -> tuple[Banded, Tensor]:
    """The band between the states `kept` out of log weights [K, w], and the log of each row's sum."""
    probs, log_norm = band_probs(log_weights, kept)
    return Banded(probs), log_norm


def flat(value: Any) -> list[Tensor]:
    """All tensors of a nested result, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [] if value is None else [tensor for item in value for tensor in flat(item)]
