"""Plots of tables: their points, error bars and axes are those of the results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments import plots
from experiments.experiment import HERE, Experiment, find
from experiments.plots import Line, Look, Point, draw, line, lines_of, look_of, save, spread, write_plots
from trellis.errors import TrellisError

EXPERIMENTS = sorted(path.parent for path in HERE.glob("*/plots"))
LOOK = Look("title", "length (tokens)", "error")
needs_matplotlib = pytest.mark.skipif(
    plots.find_spec("matplotlib") is None, reason="matplotlib is missing: pip install 'trellis-hmm[plots]'"
)


def all_lines(experiment: Experiment) -> dict[str, tuple[Look, list[Line]]]:
    asked = [(table, table.plot) for table in experiment.tables if table.plot]
    drawn = {table.name: (look_of(experiment, table, plot), lines_of(experiment, table, plot)) for table, plot in asked}
    return drawn | {name: picture() for name, picture in experiment.paper.pictures.items()}


@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda path: path.name)
def test_written_plots_show_every_line_and_name_their_axes(folder: Path) -> None:
    found = {name: (look, lines) for name, (look, lines) in all_lines(find(str(folder))[0]).items() if lines}
    assert {path.stem for path in (folder / "plots").glob("*.svg")} == set(found)
    for name, (look, lines) in found.items():
        picture = ElementTree.parse(folder / "plots" / f"{name}.svg").getroot()
        texts = {"".join(text.itertext()).strip() for text in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert {look.x, look.y} <= texts
        assert len(lines) == 1 or {one.name for one in lines} <= texts
        assert not {look.x, look.y} & {"valid", "states", "dropout_rate"}  # names, not keys


def test_error_bars_are_one_standard_deviation() -> None:
    assert spread(8, [1.0, 2.0, 3.0]) == Point(8, 2.0, 1.0, 3.0)
    assert spread(8, [2.0]) == Point(8, 2.0, 2.0, 2.0)


def test_medians_have_their_quartiles() -> None:
    experiment = find("densehmm")[0]
    table = next(one for one in experiment.tables if one.name == "matrices")
    assert table.plot is not None
    first = lines_of(experiment, table, table.plot)[0].points[0]
    result = next(one for one in experiment.results if one.run == "matrices-3-1")
    assert first == ((3, 1), *(result.figures[f"normAbsLin{part}"] for part in ("", "_25", "_75")))


@needs_matplotlib
def test_points_bars_and_scales() -> None:
    ours = Line("ours", [Point(1, 10.0, 9.0, 12.0), Point(16, 5.0, 5.0, 5.0)], "one")
    (axes,) = draw([ours, line("theirs", {1: 11.0, 16: 6.0}, "one", True)], LOOK).axes
    (line1, _, (bars,)), (line2, _, no_bars) = (container.lines for container in axes.containers)
    assert (list(line1.get_xdata()), list(line1.get_ydata())) == ([1.0, 16.0], [10.0, 5.0])
    assert list(line2.get_ydata()) == [11.0, 6.0]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[9.0, 12.0], [5.0, 5.0]]
    assert no_bars == ()
    assert line1.get_color() == line2.get_color()
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("length (tokens)", "error", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "16"]
    assert [label.get_text() for label in axes.get_legend().get_texts()] == ["ours", "theirs"]


@needs_matplotlib
def test_pairs_stand_side_by_side_and_only_those_that_share_the_first_are_joined() -> None:
    pairs = {(3, 1): 1.0, (3, 2): 2.0, (5, 1): 3.0}
    (axes,) = draw([line("a", pairs)], Look("title", "l", "error", pair="n")).axes
    assert [list(container.lines[0].get_ydata()) for container in axes.containers] == [[1.0, 2.0], [3.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2\nn = 3", "1\nn = 5"]


@needs_matplotlib
@pytest.mark.parametrize("kind", plots.FORMATS)
def test_files_are_reproducible(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        save(draw([line("x", {1: 2.0, 2: 3.0})], LOOK), tmp_path / f"{name}.{kind}", "title")
    first, second = (tmp_path / f"{name}.{kind}" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith({"svg": b"<?xml", "pdf": b"%PDF"}[kind])


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(TrellisError, match=r"need matplotlib; install it with: pip install 'trellis-hmm\[plots\]'"):
        write_plots(find("kernel-hmm")[0], tmp_path)
