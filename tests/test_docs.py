"""Examples in the documentation that show what they print."""

from __future__ import annotations

import doctest
import re
import runpy
import shlex
from pathlib import Path

import pytest

from running import run

DOCS = Path(__file__).parent.parent / "docs"
RECIPES = Path(__file__).parent / "extending"
FILE = re.compile(r"\*\*`([\w/.]+)`\*\*\n\n```python\n(.*?)```", re.DOTALL)
SHARED = {"conftest.py", "outside.py", "grouped.py"}  # of the tests themselves


def test_kernel_mean_embeddings() -> None:
    failed, tried = doctest.testfile(str(DOCS / "low-rank.md"), module_relative=False, encoding="utf-8")
    assert (failed, tried) == (0, 6)


def test_the_library_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    failed, tried = doctest.testfile(str(DOCS / "python.md"), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 40


def test_estimators_beyond_hmmlearn() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    failed, tried = doctest.testfile(str(DOCS / "estimators.md"), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 40


def test_sentences_under_constraints() -> None:
    failed, tried = doctest.testfile(str(DOCS / "constraints.md"), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 15


def test_the_example_of_constraints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["constrained.py"])
    runpy.run_path(str(DOCS.parent / "examples" / "constrained.py"))
    out = capsys.readouterr().out
    assert out.count("p(constraint) =") == 6
    assert "best: this returns each last line is specified" in out


def test_the_tour_of_the_front_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command and every line of Python, in order, in one folder; the text is small, and no GPU is used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    lines = ["return the first element of a list", "the function returns a new list", "the name of a list"]
    (tmp_path / "small.txt").write_text("\n".join(lines * 20))
    commands, names = 0, {}
    page = (DOCS / "index.md").read_text(encoding="utf-8").split("```{toctree}")[0]
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL):
        if kind == "python":
            exec(block, names)
            continue
        for line in block.splitlines() if not kind else ():
            program, *words = shlex.split(line.replace("python-docs", "small.txt").replace("64", "4"))
            if program == "trellis" and "--budget" not in words:
                assert run(*words) == 0, line
                commands += 1
    assert commands >= 7
    assert names["tagger"].tag([["the", "list"]]) == [["D", "N"]]
    assert (tmp_path / "trellis.svg").exists()
    assert "returns" in capsys.readouterr().out


def test_recipes_are_the_files_that_are_tested() -> None:
    shown = dict(FILE.findall((DOCS / "extending.md").read_text(encoding="utf-8")))
    files = {path.relative_to(RECIPES).as_posix(): path for path in RECIPES.rglob("*.py")}
    recipes = {name: path for name, path in files.items() if name not in SHARED and not name.startswith("test_")}
    assert shown.keys() == recipes.keys()
    for name, path in recipes.items():
        assert shown[name] == path.read_text(encoding="utf-8"), name


def test_entry_points_are_those_that_are_tested() -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    table = page.split("```toml\n")[1].split("```")[0]
    plain = table.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    assert f'ENTRY_POINTS = """{plain}"""' in (RECIPES / "outside.py").read_text(encoding="utf-8")
