"""The model called demo: in the package, made by examples/bundled.toml, and what the README's first lines load."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import trellis
from corpora import hmm
from running import run
from trellis.models.files import find_model

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "trellis"
LARGEST = 500_000  # bytes
HALF = 2.0**-10  # relative rounding of float16, and its smallest error of a small number


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_first_lines_of_the_readme_run() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## Quick start\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    code = block.group(1).split("\n\n")
    assert 'trellis.load("demo")' in "\n".join(code[:2])
    exec("\n\n".join(code[:2]), {})


def test_it_is_the_model_that_its_toml_describes() -> None:
    model = trellis.load("demo", trellis.HMM)
    written = tomllib.loads((ROOT / "examples" / "bundled.toml").read_text(encoding="utf-8"))
    assert model.num_states == written["model"]["states"]
    assert {key: model.about["data"][key] for key in written["data"]} == written["data"]
    assert model.about["run"]["command"] == "trellis train examples/bundled.toml --run runs/bundled --quiet"
    assert model.about["scores"]["valid"] < 80
    assert next(model.params.parameters()).dtype == torch.float32
    np.testing.assert_allclose(model.posterior("the function returns a list").sum(1), 1.0, rtol=1e-5)
    (ranked,) = model.infill("return the first element of a ___").gaps  # type: ignore[union-attr]
    assert sum(p for _, p in ranked) <= 1 + 1e-5


def test_it_is_small_and_in_the_wheel() -> None:
    assert find_model("demo") == PACKAGE / "models" / "demo.safetensors"
    assert find_model("demo").stat().st_size < LARGEST
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["trellis"]
    others = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()]
    others = [name for name in others if not name.endswith(".py") and "__pycache__" not in name]
    assert others
    assert not [name for name in others if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("infill", "demo", "the function ___ a list") == 0
    assert "proved" in capsys.readouterr().out
    assert run("info", "demo") == 0
    assert "python-docs" in capsys.readouterr().out


def test_a_model_of_that_name_in_the_working_directory_wins(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert trellis.load("demo").num_states == 96  # a folder without a model hides nothing
    own = hmm()
    own.save("demo")
    assert trellis.load("demo").num_states == own.num_states
    with pytest.raises(trellis.TrellisError, match="no model at elsewhere"):
        trellis.load("elsewhere")


def test_half_precision_halves_the_file_and_rounds(tmp_path: Path) -> None:
    model = hmm().float()
    with torch.no_grad():
        model.params.get_parameter("start_logits")[0] = -1e30  # a probability of zero, as EM writes it
    model.save("half", half=True)
    found = trellis.load("half", trellis.HMM)
    for name, value in model.tensors().items():
        other = found.tensors()[name]
        assert other.dtype == value.dtype == torch.float32
        kept = value > -1e30
        torch.testing.assert_close(other[kept], value[kept], rtol=HALF, atol=HALF)
        assert not torch.equal(other[kept], value[kept])
    assert found.parts().start[0] == 0
    big = trellis.HMM.new(trellis.Vocabulary([f"w{i}" for i in range(200)], [1] * 200, "whitespace"), 50)
    sizes = []
    for name, half in (("a", False), ("b", True)):
        big.save(name, half=half)
        sizes.append(find_model(name).stat().st_size - 4000)  # the header has the words
    assert sizes[1] < 0.6 * sizes[0]
