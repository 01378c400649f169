"""The scikit-learn face of the factorial HMM."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from trellis.errors import InputError, TrellisError
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


def test_every_kind_of_input_is_the_same_text() -> None:
    """As numbers with lengths, as a list of sequences, as strings: the same features, in the order given."""
    X, model = symbols(), FactorialHMM((2, 2), learner="stepwise-em", epochs=2)
    expected = model.fit(X, LENGTHS).transform(X, LENGTHS)
    parts = np.split(X, np.cumsum(LENGTHS)[:-1])
    words = [[f"w{symbol}" for symbol in part] for part in parts]
    for given in (parts, [part.tolist() for part in parts], words):
        np.testing.assert_allclose(clone(model).fit(given).transform(given), expected, atol=1e-6)
    assert clone(model).get_params() == model.get_params()


def test_missing_observations_are_summed_out() -> None:
    model = FactorialHMM((2, 3), epochs=3, missing_values=-1).fit(symbols(), LENGTHS)
    ends = [model.score([0, symbol]) for symbol in range(len(model.model_.vocab))]
    assert model.score([0, -1]) == pytest.approx(model.score([0]), abs=1e-5)
    assert np.logaddexp.reduce(ends) == pytest.approx(model.score([0]), abs=1e-5)
    assert model.transform([-1, -1]).shape == (2, 5)


@pytest.mark.parametrize("learner", ["em", "stepwise-em"])
def test_a_sequence_of_which_nothing_was_observed_is_no_harm(learner: str) -> None:
    model = FactorialHMM((2, 2), learner=learner, epochs=2).fit([[None], [0, 1, 0], [None] * 9000])
    assert np.isfinite([*model.bounds_, model.score([0, 1])]).all()


def test_samples_have_the_names_of_the_symbols() -> None:
    model = FactorialHMM((2, 2), epochs=2).fit(list("abacab"))
    drawn, states = model.sample(20)
    assert set(drawn[:, 0]) <= set("abc")
    assert states.shape == (20, 2)
    assert (model.sample(20)[0] == drawn).all()
    assert pickle.loads(pickle.dumps(model)).score(list("cab")) == model.score(list("cab"))


@pytest.mark.parametrize(
    ("X", "lengths", "says"),
    [([], None, "empty"), ([0.5], None, "not an integer"), ([-1], None, "negative"), ([1, 2], [1], "lengths sum"),
     ([1, 2], [2, 0], "empty"), ([None], None, "are missing"), ([float("nan")], None, "NaN")],
)  # fmt: skip
def test_bad_input(X, lengths, says: str) -> None:
    with pytest.raises(InputError, match=says):
        FactorialHMM().fit(X, lengths=lengths)


def test_what_was_never_fitted() -> None:
    with pytest.raises(NotFittedError):
        FactorialHMM().score([1])
    model = FactorialHMM((2,), epochs=1).fit([0, 1, 2])
    with pytest.raises(InputError, match="unknown symbol"):
        model.transform([9])
    with pytest.raises(InputError, match="fitted to numbers"):
        model.transform(["a"])
    with pytest.raises(TrellisError, match="learner"):
        FactorialHMM(learner="magic").fit([0, 1])
    with pytest.raises(TrellisError, match="at least 1 state"):
        FactorialHMM((2, 0)).fit([0, 1])
