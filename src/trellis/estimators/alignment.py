"""Renumber the states of one model to match those of another (the Hungarian algorithm)."""

from functools import singledispatch
from typing import Any, Self

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trellis.emissions import Categorical, Emission, GaussianMixture, Multinomial
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.poisson import Poisson
from trellis.errors import InputError
from trellis.estimators.inputs import Array
from trellis.estimators.topology import SETTINGS, ConstrainedHMM

SMALLEST = 1e-300  # smallest overlap of two emissions


class AlignedHMM(ConstrainedHMM):
    """An estimator whose states can be renumbered to match those of another."""

    def _forget(self) -> None:
        """Drop the running statistics of partial_fit, which are in the old order of states."""

    def align_to(self, other: Any, X: Any = None, lengths: Any = None) -> Self:
        """Renumber the states so that state i matches state i of `other`, and return self.

        States are compared by the Bhattacharyya distance of their emissions. If X is given, they are compared by their
        posteriors instead: states match if they are probable at the same observations."""
        self._check_fitted()
        other._check_fitted()
        if other.n_components != self.n_components:
            raise InputError(
                f"The models have {self.n_components} and {other.n_components} states; the numbers must be equal."
            )
        if X is None:
            cost = distance(self._emission(), other._emission()).cpu().numpy()
        else:
            cost = -self.predict_proba(X, lengths).T @ other.predict_proba(X, lengths)
        mine, theirs = linear_sum_assignment(cost)
        return self._reorder(mine[np.argsort(theirs)])

    def _reorder(self, order: Array) -> Self:
        """Renumber the states: new state i is old state order[i]."""
        fixed = [name for name in SETTINGS if getattr(self, name) is not None]
        if fixed and (order != np.arange(len(order))).any():
            raise InputError(
                f"{fixed[0]} refers to states by number, so the states cannot be renumbered; align the other model."
            )
        parts = self._parts()
        ids = torch.from_numpy(order).to(parts.start.device)
        parts.emission = parts.emission.take(ids)
        self._adopt_emission(parts.emission)
        self.startprob_, self.transmat_ = self.startprob_[order], self.transmat_[np.ix_(order, order)]
        self._forget()
        return self


@singledispatch
def distance(ours: Emission, theirs: Any) -> Tensor:
    """The Bhattacharyya distance -log sum_x sqrt(p(x | i) q(x | j)) of all pairs of states: [K, K]."""
    raise InputError(f"States with {type(ours).__name__} emissions are compared by their posteriors; pass X.")


@distance.register
def _(ours: Categorical, theirs: Any) -> Tensor:
    roots = [(0.5 * table).exp() for table in (ours.dense(), theirs.dense())]
    size = max(map(len, roots))
    left, right = (torch.nn.functional.pad(root, (0, 0, 0, size - len(root))) for root in roots)
    return -(left.T @ right).clamp(min=SMALLEST).log()


@distance.register
def _(ours: GaussianMixture, theirs: Any) -> Tensor:
    """The distance of normal distributions with the means and covariances of the mixtures."""
    return distance(ours.matched(), theirs.matched())


@distance.register
def _(ours: Multinomial, theirs: Any) -> Tensor:
    """The distance for a single trial."""
    return -(ours.probs.sqrt() @ theirs.probs.sqrt().T).clamp(min=SMALLEST).log()


@distance.register
def _(ours: Poisson, theirs: Any) -> Tensor:
    return 0.5 * (ours.rates.sqrt()[:, None] - theirs.rates.sqrt()).square().sum(-1)


@distance.register
def _(ours: Gaussian, theirs: Any) -> Tensor:
    left, right = (one.kind.full(one.covars, *one.means.shape) for one in (ours, theirs))
    middle, off = (left[:, None] + right) / 2, ours.means[:, None] - theirs.means
    far = (off * torch.linalg.solve(middle, off)).sum(-1) / 8
    return far + (middle.logdet() - (left.logdet()[:, None] + right.logdet()) / 2) / 2
