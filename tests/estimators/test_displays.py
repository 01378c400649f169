"""Plots: axes in and out."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from estimator_cases import CASES, LENGTHS, STATES, Case

import trellis
from trellis import TrellisError
from trellis.estimators import CategoricalHMM, GaussianHMM, plot_posterior, plot_states, plot_transitions
from trellis.estimators.displays import marker

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is missing")
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pictures_of_every_estimator(case: Case) -> None:
    X = case.data()
    model = case.ours(random_state=0, n_iter=3).fit(X, LENGTHS)
    ax = Figure().subplots()
    assert plot_states(model, X, LENGTHS, ax=ax) is ax
    states = model.predict(X, LENGTHS)
    for state, points in enumerate(ax.collections):
        shown = np.asarray(points.get_offsets())
        assert (shown[:, 0] == np.flatnonzero(states == state)).all()
        assert (shown[:, 1] == X[states == state, 0]).all()
    assert len(ax.collections) == STATES
    separators = [line.get_xdata()[0] for line in ax.lines[1:]]
    assert separators == [end - 0.5 for end in np.cumsum(LENGTHS)[:-1]]
    ax = Figure().subplots()
    assert plot_posterior(model, X, LENGTHS, ax=ax) is ax
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [f"state {k}" for k in range(STATES)]
    first = ax.collections[0].get_paths()[0].vertices
    assert first[:, 1].max() == pytest.approx(model.predict_proba(X, LENGTHS)[:, 0].max())
    ax = Figure().subplots()
    assert plot_transitions(model, ax=ax) is ax
    np.testing.assert_array_equal(ax.images[0].get_array(), model.transmat_)
    written = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in ax.texts}
    rounded = {place: f"{value:.2f}".removeprefix("0") for place, value in np.ndenumerate(model.transmat_)}
    assert written == {place: text for place, text in rounded.items() if text != ".00"}


def test_axes_are_made_if_none_are_given() -> None:
    model = CategoricalHMM(2, random_state=0).fit("abracadabra")
    for ax in (plot_states(model, "abra"), plot_posterior(model, "abra"), plot_transitions(model)):
        assert ax.figure in map(plt.figure, plt.get_fignums())
        plt.close(ax.figure)
    ax = plot_states(model, "abra", ax=Figure().subplots())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c", "d", "r"]


def test_words_of_states_with_few_words() -> None:
    text = ["a b c d", "b a c", "c c a e f"] * 20
    model = trellis.train(text, states=6, emission="brown", classes=3, epochs=1).model
    ax = plot_states(model, ax=Figure().subplots())
    words = [len(one.words) for one in model.states(6, 5)]
    assert len(set(words)) > 1
    assert len(ax.texts) == sum(words)


def test_states_of_one_colour_have_different_markers() -> None:
    for colours in (7, 10):
        assert len({(state % colours, marker(state)) for state in range(14)}) == 14


def test_gaps_and_named_sequences() -> None:
    pd = pytest.importorskip("pandas", reason="pandas is missing")
    data = pd.DataFrame({"x": [1.0, 5.0, np.nan, 5.0, 1.0, 5.0], "who": list("ababab")})
    model = GaussianHMM(2, random_state=0, missing_values=np.nan, sequence_id="who").fit(data)
    ax = plot_states(model, data, ax=Figure().subplots())
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), data.x)
    assert len(ax.lines) == 1


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    model = CategoricalHMM(2, random_state=0).fit([0, 1, 2, 1])
    with pytest.raises(
        TrellisError, match=r"Plots need matplotlib; install it with: pip install 'trellis-hmm\[plots\]'"
    ):
        plot_transitions(model)
