"""Exact EM for a linear dynamical system with dense observations: Kalman smoothing, then least squares."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import gaussian
from trellis.inference.beliefs import symmetric
from trellis.inference.gaussian import Dynamics, Normal, Observation
from trellis.options import choose

NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "full": lambda cov: cov,
    "diagonal": lambda cov: cov.diagonal().diag(),
    "spherical": lambda cov: cov.diagonal().mean() * torch.eye(len(cov)).to(cov),
}


class KalmanStep(NamedTuple):
    """The log-likelihood before an iteration, and the system after it."""

    log_likelihood: float
    prior: Normal
    dynamics: Dynamics
    observation: Observation


def learn_exactly(
    prior: Normal, dynamics: Dynamics, observation: Observation, values: Tensor, noise: str = "full"
) -> Iterator[KalmanStep]:
    """Yield one EM iteration after another, without end, on sequences [B, T, p] without missing values."""
    restrict = choose(NOISES, noise, "The noise")
    if values.shape[1] < 2 or bool(values.isnan().any()):
        raise TrellisError("Exact EM needs sequences of at least two steps, without missing values.")
    batch, steps, _ = values.shape
    second = crossed_sum(values, values)
    while True:
        found = gaussian.smooth(prior, dynamics, gaussian.observe(observation, values))
        x, covs = found.means, found.covs  # the same for all sequences
        moved = crossed_sum(x[:, 1:], x[:, :-1]) + found.lagged.total(batch)  # sum of E[x_{t+1} x_t']
        all_steps = crossed_sum(x, x) + covs.total(batch)
        first, last = (crossed_sum(x[:, [t]], x[:, [t]]) + batch * covs.step(t)[0] for t in (0, -1))
        crossed = crossed_sum(values, x)
        transition = torch.linalg.solve(all_steps - last, moved, left=False)
        loadings = torch.linalg.solve(all_steps, crossed, left=False)
        mean = x[:, 0].mean(0)
        prior = Normal(mean, symmetric(first / batch - torch.outer(mean, mean)))
        state_noise = (all_steps - first - transition @ moved.T) / (batch * (steps - 1))
        dynamics = Dynamics(transition, symmetric(state_noise))
        rest = symmetric((second - loadings @ crossed.T) / (batch * steps))
        observation = Observation(loadings, restrict(rest))
        yield KalmanStep(float(found.log_likelihood.sum()), prior, dynamics, observation)


def crossed_sum(left: Tensor, right: Tensor) -> Tensor:
    """The sum of the outer products of `left` and `right` over all steps of sequences [B, T, ...]."""
    return left.flatten(0, 1).mT @ right.flatten(0, 1)
