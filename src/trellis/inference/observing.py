"""Potentials of x from dense observations y = C x + N(0, D), with various patterns of missing values."""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import solve_triangular

from trellis.errors import TrellisError
from trellis.inference.beliefs import MISSING, Potentials
from trellis.kernels.kalman import compiled, share

HELD = 1 << 24  # values in memory at a time, with many distinct patterns
TOGETHER = 64  # steps of one pattern whitened together


class Observation(NamedTuple):
    """y_t = C x_t + N(0, D)."""

    loadings: Tensor  # C [p, h]
    noise: Tensor  # D [p, p]


class Sensed(NamedTuple):
    """The information about x in the observed values. Here C, D and y have only the observed components."""

    information: Tensor  # C' D^-1 C of each pattern of observed components [N, h, h]
    vectors: Tensor  # C' D^-1 y of each step [S, h]
    constants: Tensor  # log N(y; 0, D) of each step [S]


def observe(observation: Observation, values: Tensor) -> Potentials:
    """Potentials of dense observations [B, T, p]. NaN marks missing values; a step may lack some or all of its
    values."""
    shape, flat = values.shape[:2], values.reshape(-1, values.shape[-1])
    patterns, rows = distinct_rows(~flat.isnan())
    sense = sense_compiled if len(patterns) > 1 and compiled(values, *observation) else sense_patterns
    try:
        information, vectors, constants = sense(observation, flat, patterns, rows)
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError) as error:
        raise TrellisError("The observation noise is not positive definite; increase its variances.") from error
    rows = rows.masked_fill(~patterns.any(-1)[rows], MISSING)
    return Potentials(information, rows.view(shape), vectors.view(*shape, -1), constants.view(shape))


def distinct_rows(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a matrix, and the index of each row among them."""
    if bool(seen.all()):
        return seen[:1], torch.zeros(len(seen), dtype=torch.int64, device=seen.device)
    patterns, rows = seen.unique(dim=0, return_inverse=True)
    return patterns, rows


def sense_patterns(observation: Observation, values: Tensor, patterns: Tensor, rows: Tensor) -> Sensed:
    """Compute the information in torch, for many patterns at a time. Unobserved components are padded."""
    order, bounds = rows.argsort(stable=True), [0, *torch.bincount(rows).cumsum(0).tolist()]
    flat, held = values.nan_to_num(0.0)[order], max(1, HELD // (8 * values.shape[1] ** 2))
    information, vectors, constants = [], [], []
    for begin in range(0, len(patterns), held):
        some, ends = patterns[begin : begin + held], bounds[begin : begin + held + 1]
        sensing, root = whiten(observation, some)
        information.append(sensing.mT @ sensing)
        volumes = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + some.sum(-1).to(values) * math.log(2 * math.pi)
        if ends[-1] - ends[0] == len(some):  # all patterns are distinct
            groups = [(sensing, root, volumes, flat[ends[0] : ends[-1], None])]
        else:
            pieces = (flat[first:last] for first, last in pairwise(ends))
            groups = list(zip(sensing, root, volumes, pieces, strict=True))
        for seen, lower, volume, piece in groups:
            white = solve_triangular(lower, piece.mT, upper=False).mT  # root^-1 y
            vectors.append((white @ seen).view(-1, seen.shape[-1]))
            constants.append(-0.5 * (volume + white.square().sum(-1).view(-1)))
    back = order.argsort()
    return Sensed(torch.cat(information), torch.cat(vectors)[back], torch.cat(constants)[back])


def whiten(observation: Observation, patterns: Tensor) -> tuple[Tensor, Tensor]:
    """R^-1 C and R, the Cholesky factor of D, for each pattern of observed components [N, p]: [N, p, h], [N, p, p]."""
    both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
    eye = torch.eye(patterns.shape[-1]).to(observation.noise)
    root = torch.linalg.cholesky(torch.where(both, observation.noise, eye))
    return solve_triangular(root, patterns.unsqueeze(-1) * observation.loadings, upper=False), root


def sense_compiled(observation: Observation, values: Tensor, patterns: Tensor, rows: Tensor) -> Sensed:
    """Like `sense_patterns`, but in compiled code, which processes all patterns in one call."""
    (loadings, noise), hidden = observation, observation.loadings.shape[1]
    order, counts = rows.argsort(stable=True), torch.bincount(rows)
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows[order]]  # index of a step within its pattern
    begins = (place % TOGETHER == 0).nonzero()[:, 0]
    information, vectors = values.new_empty(len(patterns), hidden, hidden), values.new_empty(len(rows), hidden)
    found = Sensed(information, vectors, values.new_empty(len(rows)))
    share("sense", len(begins), loadings, noise, values, patterns, rows, order, begins, *found)
    return found
