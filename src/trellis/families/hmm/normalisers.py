"""The normalisers of a large softmax transition, which the explorer keeps beside the model."""

from __future__ import annotations

import numpy as np
import torch

from trellis.families.hmm.model import HMM
from trellis.transitions import Softmax

NORMS = "norms"  # the name of the array
CHECKED, EXACT = 16, 1e-3  # how many of the normalisers in a file are checked, and how exactly


@torch.no_grad()
def use_norms(model: HMM, norms: np.ndarray | None) -> None:
    """Use saved normalisers of a softmax transition, after checking some of them. Computing them takes O(K^2 d)."""
    transition = model.parts().transition
    if norms is None or not isinstance(transition, Softmax) or norms.shape != (model.num_states,):
        return
    given = torch.from_numpy(norms).to(model.device)
    some = torch.linspace(0, model.num_states - 1, CHECKED, device=model.device).long()
    right = (transition.queries[some].to(transition.keys.dtype) @ transition.keys.T).logsumexp(-1)
    if bool(given.isfinite().all()) and bool(((given[some] - right).abs() < EXACT).all()):
        transition.log_norm = given.to(right.dtype)


@torch.no_grad()
def norms_of(model: HMM) -> dict[str, np.ndarray]:
    """The normalisers of a softmax transition, if it has any."""
    transition = model.parts().transition
    return {NORMS: transition.log_norm.detach().cpu().numpy()} if isinstance(transition, Softmax) else {}
