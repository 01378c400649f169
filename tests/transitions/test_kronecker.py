"""The Kronecker operator: layers of different sizes, one of them with a single state."""

from __future__ import annotations

import torch

from trellis.testing import check_transition
from trellis.testing.close import assert_close
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Kronecker
from trellis.transitions.kronecker import digits, marginals, merge, outer, through

SIZES = (2, 1, 3)


def test_conformance() -> None:
    matrices = [distributions(seeded(20 + size), size, size) for size in SIZES]
    check_transition(lambda *layers: Kronecker(layers), *matrices)


def test_digits_and_marginals_agree_with_the_order_of_states() -> None:
    states = torch.arange(6)
    assert torch.stack(digits(states, SIZES), -1).tolist() == [[a, 0, b] for a in range(2) for b in range(3)]
    factors = [distributions(seeded(21), 4, size) for size in SIZES]
    assert_close(marginals(outer(factors), SIZES), torch.cat(factors, -1))


def test_merged_layers_step_as_they_do_apart() -> None:
    matrices = [distributions(seeded(30 + size), size, size) for size in (12, 5, 9, 3)]
    merged, probs = merge(matrices), distributions(seeded(22), 2, 12 * 5 * 9 * 3)
    assert [len(matrix) for matrix in merged] == [60, 27]
    assert_close(through(probs, matrices), probs @ Kronecker(matrices).dense())
    assert_close(through(probs, merged), through(probs, matrices))
