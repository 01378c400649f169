"""The long-run distribution."""

from __future__ import annotations

import pytest
import torch

from trellis.inference.stationary import long_run, stationary
from trellis.testing.close import assert_close
from trellis.testing.problems import distributions, seeded


def test_it_stays_where_it_is() -> None:
    matrices = distributions(seeded(0), 2, 4, 5, 5, zeros=0.3)
    share = stationary(matrices)
    assert_close((share.unsqueeze(-2) @ matrices).squeeze(-2), share)
    assert_close(share.sum(-1), torch.ones(2, 4))


def test_periodic_chains_and_states_that_are_left_for_good() -> None:
    assert_close(stationary(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()), torch.tensor([0.5, 0.5]))
    assert_close(stationary(torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double()), torch.tensor([0.0, 1.0]))


def test_gradients() -> None:
    logits = torch.randn(3, 3, generator=seeded(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: stationary(x.softmax(-1)), logits)


def test_a_chain_that_falls_apart_has_no_single_answer() -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        stationary(torch.eye(3))


def test_the_long_run_depends_on_the_start_if_there_are_several_closed_classes() -> None:
    matrix = torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    start = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.8, 0.2], dtype=torch.float64)
    torch.testing.assert_close(long_run(start, matrix), expected, rtol=0, atol=1e-6)
    mixing = distributions(seeded(1), 3, 3)
    assert_close(long_run(start, mixing), stationary(mixing))
