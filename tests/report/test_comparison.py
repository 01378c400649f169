"""The picture of a comparison: well-formed, self-contained, and its heights are the perplexities."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from trellis.report.comparison import BOTTOM, LEFT, RIGHT, TOP, draw_comparison, write_comparison
from trellis.tasks.bands import Band
from trellis.tasks.compare import Row

SVG = "{http://www.w3.org/2000/svg}"
PIXEL = 0.11


def row(name: str, factor: float, last: float = 12.0) -> Row:
    frequency = [Band("1-9", 10, 9000.0 * factor), Band("10+", 60, 90.0 * factor**2), Band("<eos>", 30, last)]
    position = [Band("0", 50, 200.0 * factor), Band("1+", 50, 100.0)]
    return Row(name, "hmm", "streams", 100, -500.0, 150.0 * factor, frequency, position)


def panels(rows: list[Row]) -> list[ElementTree.Element]:
    picture = ElementTree.fromstring(draw_comparison(rows))
    return [group for group in picture.findall(f"{SVG}g") if group.get("transform")]


def heights(panel: ElementTree.Element) -> list[list[float]]:
    """The height of each point of each model."""
    groups = [group for group in panel.iter(f"{SVG}g") if group.find(f"{SVG}polyline") is not None]
    return [[float(dot.get("cy", "nan")) for dot in group.iter(f"{SVG}circle")] for group in groups]


def test_heights_are_ratios_to_the_first_model_on_a_log_scale() -> None:
    frequency, position = panels([row("a", 1.0), row("b", 2.0), row("c", 0.5)])
    first, double, half = heights(frequency)
    assert len(set(first)) == 1  # the first model is the base line
    level = first[0]
    assert level - double[0] == pytest.approx(half[0] - level, abs=PIXEL)
    assert level - double[1] == pytest.approx(2 * (level - double[0]), abs=2 * PIXEL)
    assert double[2] == half[2] == level
    assert heights(position)[1][0] < heights(position)[1][1]
    for dot in [dot for panel in (frequency, position) for dot in panel.iter(f"{SVG}circle")]:
        assert LEFT <= float(dot.get("cx")) <= RIGHT
        assert TOP <= float(dot.get("cy")) <= BOTTOM


def test_one_model_is_drawn_as_it_is() -> None:
    frequency, _ = panels([row("only", 1.0)])
    (only,) = heights(frequency)
    logs = [math.log(value) for value in (9000.0, 90.0, 12.0)]
    assert (only[1] - only[0]) / (only[2] - only[1]) == pytest.approx(
        (logs[0] - logs[1]) / (logs[1] - logs[2]), rel=0.01
    )


def test_single_words_stand_apart() -> None:
    frequency, position = panels([row("a", 1.0)])
    assert [len(line.get("points", "").split()) for line in frequency.iter(f"{SVG}polyline")] == [2]
    assert [len(line.get("points", "").split()) for line in position.iter(f"{SVG}polyline")] == [2]


def test_what_is_infinite_is_left_out() -> None:
    frequency, _ = panels([row("a", 1.0), row("b", 2.0, last=math.inf)])
    assert [len(points) for points in heights(frequency)] == [3, 2]
    frequency, _ = panels([row("a", 1.0, last=math.inf), row("b", 2.0, last=math.inf)])
    assert [len(points) for points in heights(frequency)] == [2, 2]


def test_the_file_needs_nothing_else_and_names_are_text(tmp_path: Path) -> None:
    names = ["<script>x</script>", "a" * 99, 'say "&"', *map(str, range(40))]
    write_comparison(tmp_path / "new" / "x.svg", [row(name, 1 + 0.01 * i) for i, name in enumerate(names)])
    source = (tmp_path / "new" / "x.svg").read_text(encoding="utf-8")
    texts = [element.text or "" for element in ElementTree.fromstring(source).iter(f"{SVG}text")]
    assert "<script>x</script> 150.0" in texts
    assert f"…{'a' * 27} 151.5" in texts
    assert not re.search(r"<script|url\(|@import|href|\bnan\b|\binf\b", source)
