"""Figures with matplotlib show the numbers that the library computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from trellis.report.figures import SLOPE

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
import matplotlib
from matplotlib.figure import Figure

TEXT = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 10


@pytest.fixture(scope="module")
def trained() -> trellis.Trained:
    return trellis.train(TEXT, states=3, epochs=3, tokenizer="whitespace", device="cpu")


def test_a_trellis_has_the_posteriors_and_the_viterbi_path(trained: trellis.Trained) -> None:
    found: Any = trained.model.draw("the cat runs")
    axes = trellis.plot_trellis(trained.model, "the cat runs", ax=Figure().subplots())
    circles, rings = [one for one in axes.collections if hasattr(one, "get_sizes") and len(one.get_offsets())][-2:]
    drawn = {
        tuple(map(int, place)): size for place, size in zip(circles.get_offsets(), circles.get_sizes(), strict=True)
    }
    largest = max(drawn.values()) / found.posterior.max()
    assert drawn == pytest.approx({place: largest * found.posterior[place] for place in drawn}, rel=1e-5)
    assert len(drawn) == (found.posterior > 0.02).sum()
    assert rings.get_offsets().astype(int).tolist() == [[time, row] for time, row in enumerate(found.path)]


def test_curves_are_the_history(trained: trellis.Trained) -> None:
    axes = trellis.plot_training({"small": trained}, ax=Figure().subplots())
    lines = {line.get_label(): line for line in axes.lines}
    assert lines.keys() == {"small train", "small valid"}
    np.testing.assert_allclose(lines["small valid"].get_ydata(), [line["valid_ppl"] for line in trained.history])
    np.testing.assert_allclose(lines["small valid"].get_xdata(), [1, 2, 3])
    assert axes.get_yscale() == "log"


def test_comparisons_are_relative_to_the_first_model(trained: trellis.Trained) -> None:
    bigram = trellis.train(TEXT, family="bigram", tokenizer="whitespace").model
    rows = trellis.compare([bigram, trained.model], TEXT)
    axes = trellis.plot_comparison(rows, ax=Figure().subplots())
    first, second = (np.asarray(line.get_ydata(), float) for line in axes.lines)
    np.testing.assert_allclose(first[np.isfinite(first)], 1.0)
    ratios = [
        ours.perplexity / base.perplexity for base, ours in zip(rows[0].by_frequency, rows[1].by_frequency, strict=True)
    ]
    np.testing.assert_allclose(second[np.isfinite(second)], [ratio for ratio in ratios if np.isfinite(ratio)])
    alone = trellis.plot_comparison(rows[:1], by="position", ax=Figure().subplots())
    assert alone.get_ylabel() == "perplexity"


def test_models_have_the_given_names(trained: trellis.Trained) -> None:
    rows = trellis.compare({"one": trained.model, "other": trained.model}, TEXT)
    shown = trellis.plot_comparison(rows, ax=Figure().subplots()).get_legend().get_texts()
    assert [text.get_text().split(" (")[0] for text in shown] == ["one", "other"]
    assert [row.model for row in trellis.compare([trained.model] * 2, TEXT)] == ["hmm 1", "hmm 2"]


def test_the_words_of_states(trained: trellis.Trained) -> None:
    axes = trellis.plot_states(trained.model, n=2, ax=Figure().subplots())
    states: Any = trained.model.states(2, 5)
    assert [text.get_text() for text in axes.texts] == [word for state in states for word, _ in state.words]
    probs = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(probs, [[prob for _, prob in state.words] for state in states])


def test_text_that_does_not_fit(trained: trellis.Trained) -> None:
    with trellis.figure_style("column"):
        narrow = trellis.plot_trellis(trained.model, "the cat sees the dog " * 4, ax=Figure().subplots())
        small = trellis.plot_transitions(trained.model, n=3, ax=Figure(figsize=(0.8, 0.8)).subplots())
    assert {label.get_rotation() for label in narrow.get_xticklabels()} == {SLOPE}
    assert not small.texts
    assert len(small.figure.axes) == 2  # the scale of colours


def test_transitions_between_informative_states(trained: trellis.Trained) -> None:
    axes = trellis.plot_transitions(trained.model, n=3, ax=Figure().subplots())
    matrix = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=1e-5)  # all three states are shown
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        label.get_text() for label in axes.get_xticklabels()
    ]


def test_a_pdf_with_embedded_fonts(trained: trellis.Trained, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    with trellis.figure_style("page", height=2.0):
        figure = Figure()
        trellis.plot_trellis(trained.model, "the cat runs", ax=figure.subplots())
        figure.savefig(tmp_path / "trellis.pdf")
    assert figure.get_size_inches().tolist() == [6.9, 2.0]
    assert b"/FontFile2" in (tmp_path / "trellis.pdf").read_bytes()  # a TrueType font
    assert dict(matplotlib.rcParams) == before


def test_misuse_is_one_sentence(trained: trellis.Trained, tmp_path: Path) -> None:
    with pytest.raises(trellis.TrellisError, match="has no training curves"):
        trellis.plot_training(tmp_path)
    with pytest.raises(trellis.TrellisError, match="has no training curves"):
        trellis.plot_training(3)
    with pytest.raises(trellis.TrellisError, match="'frequency' or 'position', not 'length'"):
        trellis.plot_comparison([], by="length")
    with pytest.raises(trellis.TrellisError, match="at least one row"):
        trellis.plot_comparison([])
    with (
        pytest.raises(trellis.TrellisError, match="'column', 'page' or a number of inches, not 'wide'"),
        trellis.figure_style("wide"),
    ):
        pass
