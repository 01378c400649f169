"""The scikit-learn face of the factorial HMM."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.estimators import FactorialHMM

LENGTHS = [7, 1, 12, 20]


def symbols() -> np.ndarray:
    """Two clocks of periods 2 and 3, read off together."""
    return np.concatenate([np.arange(n) % 2 * 3 + np.arange(n) % 3 for n in LENGTHS])


def test_fit_transform_predict_score() -> None:
    X = symbols()
    model = FactorialHMM((2, 3), epochs=8).fit(X, LENGTHS)
    assert all(after > before - 1e-2 for before, after in itertools.pairwise(model.bounds_))
    assert model.score(X, LENGTHS) >= model.bounds_[-1]
    features = model.transform(X[:, None], LENGTHS)
    assert features.shape == (40, 5)
    np.testing.assert_allclose(features[:, :2].sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(features[7], model.transform(X[7:8])[0], atol=1e-5)
    assert model.predict(X, LENGTHS).shape == (40, 2)


@pytest.mark.parametrize(
    ("X", "lengths", "says"),
    [([], None, "at least one"), ([0.5], None, "integers"), ([-1], None, "from 0 on"), ([1, 2], [1], "add up"),
     ([1, 2], [2, 0], "positive")],
)  # fmt: skip
def test_bad_input(X, lengths, says: str) -> None:
    with pytest.raises(TrellisError, match=says):
        FactorialHMM().fit(X, lengths)


def test_what_was_never_fitted() -> None:
    with pytest.raises(TrellisError, match="call fit"):
        FactorialHMM().score([1])
    with pytest.raises(TrellisError, match="symbol 9"):
        FactorialHMM((2,), epochs=1).fit([0, 1, 2]).transform([9])
    with pytest.raises(TrellisError, match="learner"):
        FactorialHMM(learner="magic").fit([0, 1])
