"""An emission from outside in two files: von_mises.py and its estimator, von_mises_hmm.py."""

from __future__ import annotations

import numpy as np
import torch
from von_mises import VonMises, concentration
from von_mises_hmm import VonMisesHMM

from trellis.testing import check_emission
from trellis.testing.close import assert_close

FALL = 1e-9  # nats that rounding may take


def test_conformance() -> None:
    check_emission(VonMises(torch.tensor([0.3, 2.5, -1.0]).double(), torch.tensor([4.0, 1.5, 8.0]).double()))


def test_concentration_inverts_the_ratio_of_bessel_functions() -> None:
    kappa = torch.tensor([1e-3, 0.5, 3.0, 40.0, 500.0]).double()
    ratio = torch.special.i1e(kappa) / torch.special.i0e(kappa)
    assert_close(concentration(ratio), kappa, 1e-6)


def test_the_wind_turns() -> None:
    """EM finds two directions, whatever the turn at which angles are counted from zero."""
    random = np.random.default_rng(0)
    states = np.repeat(np.arange(20) % 2, 25)
    X = random.vonmises(np.array([np.pi, 0.5])[states], 6.0)[:, None]
    model = VonMisesHMM(2, n_iter=30, tol=-np.inf, n_init=3, random_state=0).fit(X)
    history = np.array(model.monitor_.history)
    assert (np.diff(history) > -FALL).all()
    found = np.sort(np.cos(model.means_))
    np.testing.assert_allclose(found, np.sort(np.cos([np.pi, 0.5])), atol=0.1)
    agreement = (model.predict(X) == states).mean()
    assert max(agreement, 1 - agreement) > 0.97
    assert model.sample(5, random_state=1)[0].shape == (5, 1)
    assert model.partial_fit(X).score(X) > history[0]
