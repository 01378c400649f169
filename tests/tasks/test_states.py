"""What states have learned, against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corpora import hmm
from trellis.families.hmm.states import summarise_states
from trellis.inference.stationary import with_restarts
from trellis.transitions import Dense


@pytest.mark.parametrize("carry", [False, True])
def test_occupancy_is_the_long_run_share(carry: bool) -> None:
    """Against the eigenvector of the chain that starts again after <eos>."""
    model = hmm(states=4, carry=carry)
    start, transition, emission = (part for part in model.parts())
    ends = torch.zeros(4) if carry else emission.dense()[model.vocab.eos].exp()
    chain = ((1 - ends)[:, None] * transition.dense() + ends[:, None] * start).detach().numpy()
    values, vectors = np.linalg.eig(chain.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    np.testing.assert_allclose(model.occupancy().numpy(), stationary / stationary.sum(), atol=1e-5)


def test_periodic_chains_settle() -> None:
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    share = with_restarts(
        torch.tensor([1.0, 0.0], dtype=torch.float64), Dense(swap), torch.zeros(2, dtype=torch.float64)
    )
    np.testing.assert_allclose(share.numpy(), [0.5, 0.5], atol=1e-6)


def test_summaries_are_sorted_and_complete() -> None:
    model = hmm(states=5)
    rows = summarise_states(model, n=3, words=4, followers=2)
    assert len(rows) == 3
    assert [row.telling for row in rows] == sorted((row.telling for row in rows), reverse=True)
    matrix, emission = model.parts().transition.dense(), model.parts().emission.dense().exp()
    for row in rows:
        assert len(row.words) == 4
        assert row.words[0][1] == pytest.approx(float(emission[:, row.state].max()))
        assert row.next_states[0][1] == pytest.approx(float(matrix[row.state].max()))
    assert len(summarise_states(model, n=99)) == 5
