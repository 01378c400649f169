"""The normalisers of a large softmax transition, which the explorer computes when they are needed, and keeps beside the
model."""

from __future__ import annotations

import numpy as np
import torch

from trellis.families.hmm.model import HMM
from trellis.transitions import LazySoftmax, Softmax

NORMS = "norms"  # the name of the array
LARGE = 8_192  # minimum number of states of a large model
CHECKED, EXACT = 16, 1e-3  # how many of the normalisers in a file are checked, and how exactly


@torch.no_grad()
def lazy_transition(model: HMM) -> LazySoftmax | None:
    """A transition that computes its normalisers only when they are needed, for a large model; None for other models.

    It replaces the transition of the model's memoised parts."""
    if model.num_states < LARGE:
        return None
    parts = model.parts()
    found = parts.transition
    if isinstance(found, LazySoftmax):
        return found
    if not isinstance(found, Softmax) or found.mask is not None:
        return None
    parts.transition = LazySoftmax(found)
    if "log_norm" in vars(found):
        parts.transition.values.copy_(found.log_norm)
    return parts.transition


@torch.no_grad()
def use_norms(transition: LazySoftmax, norms: np.ndarray | None) -> None:
    """Use normalisers that were kept in a file, after checking some of them."""
    if norms is None or norms.shape != transition.values.shape or not np.isfinite(norms).all():
        return
    given = torch.from_numpy(norms).to(transition.values)
    some = torch.linspace(0, transition.num_states - 1, CHECKED, device=given.device).long()
    transition.need(some)
    if bool(((given[some] - transition.values[some]).abs() < EXACT).all()):
        transition.values.copy_(given)
