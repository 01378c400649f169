"""Inputs and outputs of the Kalman filter: Gaussian distributions, dynamics, potentials, matrices shared by steps."""

from typing import NamedTuple

import torch
from torch import Tensor

MISSING = -1


class Normal(NamedTuple):
    """A Gaussian distribution of the state."""

    mean: Tensor  # [h] or [B, h]
    cov: Tensor  # [h, h]


class Dynamics(NamedTuple):
    """x_t = A x_{t-1} + N(0, Q)."""

    transition: Tensor  # A [h, h]
    noise: Tensor  # Q [h, h]


class Potentials(NamedTuple):
    """Gaussian potentials exp(-x' Phi x / 2 + v_t' x + c_t) of the states x_t. Steps with the same observed components
    share Phi: `rows` holds the index of each step's Phi, or -1 if the step is missing."""

    information: Tensor  # Phi [N, h, h]
    rows: Tensor  # [B, T] int64
    vectors: Tensor  # v [B, T, h]
    constants: Tensor  # c [B, T]


class Shared(NamedTuple):
    """Per-step matrices with few distinct values: step t has `distinct[:, at[t]]`."""

    distinct: Tensor  # [B or 1, S, h, h]
    at: Tensor  # [T]

    def all(self) -> Tensor:
        """The matrices of every step: [B or 1, T, h, h]."""
        return self.distinct[:, self.at]

    def step(self, t: int) -> Tensor:
        return self.distinct[:, int(self.at[t])]

    def total(self, batch: int) -> Tensor:
        """The sum over the steps of `batch` sequences: [h, h]."""
        times = torch.bincount(self.at, minlength=self.distinct.shape[1]).to(self.distinct)
        return torch.einsum("s,bsij->ij", times, self.distinct) * (batch / len(self.distinct))


class Covs(NamedTuple):
    """The distinct covariance matrices, [B or 1, S, h, h] each; the matrices of step t have the index `at[t]`."""

    priors: Tensor  # P = Cov(x_t | y_<t)
    shrink: Tensor  # W = (I + P Phi)^-1
    log_dets: Tensor  # [B or 1, S]: log |I + P Phi|
    information: Tensor  # Phi [N, h, h], and zeros for rows of -1 (omitted in compiled code)
    rows: Tensor  # [B or 1, S]
    at: Tensor  # [T]
    compiled: bool = False  # computed by compiled code, with one matrix per step of every sequence

    def phi(self, step: int) -> Tensor:
        return self.information[self.rows[:, step]]

    def filtered(self) -> Tensor:
        """The filtered covariances V = Cov(x_t | y_<=t)."""
        return symmetric(self.shrink @ self.priors)

    @property
    def settled(self) -> int:
        """The first step from which the covariances are constant; T if there is none."""
        steps, distinct = len(self.at), self.priors.shape[1]
        return distinct - 1 if distinct < steps else steps


class Means(NamedTuple):
    """The means of the forward pass, [B, T, h] each."""

    predicted: Tensor  # m = E[x_t | y_<t]
    errors: Tensor  # e = v - Phi m
    filtered: Tensor  # x^ = E[x_t | y_<=t]


def symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
