"""Hold out sequences, for early stopping and for choosing the number of states."""

import math

import numpy as np

from trellis.errors import InputError
from trellis.estimators.inputs import Array, Observations


def hold_out(
    observed: Observations, fraction: float, random: np.random.RandomState
) -> tuple[Observations, Observations]:
    """Split into training and held-out sequences: hold out random sequences, or the end if there is only one."""
    if not 0 < fraction < 1:
        raise InputError(f"validation_fraction is {fraction}; it must be between 0 and 1.")
    if len(observed.lengths) == 1:
        observed = cut(observed, fraction)
        return select(observed, np.array([0])), select(observed, np.array([1]))
    order = random.permutation(len(observed.lengths))
    held = min(math.ceil(fraction * len(order)), len(order) - 1)
    return select(observed, np.sort(order[held:])), select(observed, np.sort(order[:held]))


def cut(observed: Observations, fraction: float) -> Observations:
    """Split the only sequence in two. `fraction` is the share of the second part."""
    total = len(observed.values)
    if total < 2:
        raise InputError("Early stopping needs at least two observations: one to train on and one to hold out.")
    held = min(math.ceil(fraction * total), total - 1)
    weights = None if observed.weights is None else np.repeat(observed.weights, 2)
    return observed._replace(lengths=np.array([total - held, held]), weights=weights)


def select(observed: Observations, names: Array) -> Observations:
    """Select some of the sequences."""
    ends = np.cumsum(observed.lengths)
    places = np.concatenate([np.arange(ends[i] - observed.lengths[i], ends[i]) for i in names])
    values, missing, lengths, order, weights, states = observed
    by_step = [None if one is None else one[places] for one in (order, states)]
    weights = None if weights is None else weights[names]
    return Observations(values[places], missing[places], lengths[names], by_step[0], weights, by_step[1])
