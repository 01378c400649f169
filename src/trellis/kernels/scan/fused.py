"""The E-step of a few long sequences in float64, as a single function, which numba compiles in half a second.

Row 0 of the tables stands for missing observations. Arithmetic is scaled, as in serial.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trellis.kernels.scan.banded import scaled
from trellis.kernels.scan.lanes import MATHS

Array = np.ndarray[Any, Any]
TINY = float(np.finfo(np.float64).tiny)


class Steps:
    """Sequences [B, T], whose observations are rows of a table (-1: missing), and memory for intermediate results."""

    def __init__(self, rows: Array, lengths: Array) -> None:
        self.lengths, self.at = lengths, np.where(np.arange(rows.shape[1]) < lengths[:, None], rows + 1, 0)
        self.inverse = np.ones(rows.shape)  # 1 / p(x_t | x_<t)
        self.joint = np.empty((rows.shape[1], 0))
        self.times: Array = np.zeros(0)  # how often each row occurs

    def expect(self, prior: Array, matrix: Array, table: Array) -> tuple[Array, ...] | None:
        """log p(x), expected starts [K], transitions [K, K] and emissions [N, K]. None if a sequence is impossible."""
        symbols, states = table.shape
        if len(self.times) != symbols + 1:
            self.times = np.bincount(self.at.ravel(), minlength=symbols + 1)
        if self.joint.shape[1] != states:
            self.joint = np.empty((len(self.joint), states))
        weights = np.ones((symbols + 1, states))
        scale, weights[1:] = scaled(table, 0.0)
        found = np.zeros((1 + states + symbols + 1, states))
        starts, moves, visits = found[:1], found[1 : states + 1], found[states + 1 :]
        operands = prior, np.ascontiguousarray(matrix), np.ascontiguousarray(matrix.T), weights, self.at, self.lengths
        if not expect(*operands, self.joint, self.inverse, np.empty(states), starts, moves, visits):
            return None
        total = self.times[1:] @ scale - np.add.reduce(np.log(self.inverse), None)
        return np.array(total), starts[0], matrix * moves, visits[1:]


@njit(nogil=True, cache=True, fastmath=MATHS)
def expect(prior, matrix, transposed, weights, rows, lengths, joint, inverse, back, starts, moves, visits):
    """Add the expected counts to starts [1, K], moves [K, K] (not yet multiplied by A) and visits [N + 1, K]. Returns
    False if a sequence is impossible."""
    states = len(back)
    for b in range(len(lengths)):
        for t in range(lengths[b]):
            row, norm = rows[b, t], 0.0
            for j in range(states):
                p = 0.0
                if t == 0:
                    p = prior[j]
                else:
                    for i in range(states):
                        p += joint[t - 1, i] * transposed[j, i]
                p *= weights[row, j]
                joint[t, j] = p
                norm += p
            if not norm >= TINY:
                return False
            inverse[b, t] = 1.0 / norm
            for j in range(states):
                joint[t, j] *= inverse[b, t]
        for j in range(states):
            back[j] = 1.0
        for t in range(lengths[b] - 1, -1, -1):
            row = rows[b, t]
            for j in range(states):
                visits[row, j] += joint[t, j] * back[j]
                if t == 0:
                    starts[0, j] += joint[t, j] * back[j]
                joint[t, j] = back[j] * weights[row, j] * inverse[b, t]
            if t > 0:
                for i in range(states):
                    p, before = 0.0, joint[t - 1, i]
                    for j in range(states):
                        p += matrix[i, j] * joint[t, j]
                        moves[i, j] += before * joint[t, j]
                    back[i] = p
    return True
