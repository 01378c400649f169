"""What a result file has, and what it leaves to the defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from experiments.experiment import HERE
from experiments.results import DEFAULTS, Result, differences, merged, read_result, write_result
from trellis.config import run_config
from trellis.errors import TrellisError
from trellis.options import to_tables

VALUES = st.none() | st.integers(0, 2) | st.sampled_from(["a", "b"]) | st.lists(st.integers(0, 1), max_size=2)
SECTIONS = st.dictionaries(st.sampled_from("xyz"), VALUES, min_size=1)
TABLES = st.dictionaries(st.sampled_from("abcd"), VALUES | SECTIONS)


def write(path: Path, config: Any) -> Result:
    run, seed, _ = path.name.split(".")
    result = Result(run, int(seed), "", to_tables(config), {}, {}, {"device": "toy", "torch": "2"}, "0f", {})
    write_result(path, result, config)
    return result


@given(TABLES, TABLES)
def test_merging_undoes_leaving_out(usual: dict[str, Any], own: dict[str, Any]) -> None:
    """Of options that have a value on both sides, or are sections on both."""
    whole = merged(usual, own)
    assert merged(usual, differences(whole, usual)) == whole


def test_only_other_options_than_the_defaults_are_written(tmp_path: Path) -> None:
    config = run_config({"model": {"family": "hmm", "states": 4}, "train": {"epochs": 3}}).ordered()
    result = write(tmp_path / "small.0.json", config)
    data = json.loads((tmp_path / "small.0.json").read_text())
    assert data["defaults"] == "hmm"
    assert data["config"] == {"model": {"states": 4}, "train": {"epochs": 3}}
    assert read_result(tmp_path / "small.0.json") == result
    assert result.is_of(config)


@dataclass(frozen=True)
class Coin:
    sides: int = 2
    seed: int = 0
    device: str = "cpu"


def test_a_changed_default_changes_no_older_result(tmp_path: Path) -> None:
    """The defaults on file are those of the first result; a later one has what differs from them."""
    write(tmp_path / "fair.0.json", Coin())
    (tmp_path / DEFAULTS / "Coin.json").write_text(json.dumps(to_tables(Coin(sides=3))))  # as they once were
    assert not read_result(tmp_path / "fair.0.json").is_of(Coin())
    write(tmp_path / "fair.1.json", replace(Coin(), seed=1))
    assert json.loads((tmp_path / "fair.1.json").read_text())["config"] == {"sides": 2, "seed": 1}
    assert read_result(tmp_path / "fair.1.json").is_of(Coin())


def test_an_option_added_since_has_its_default(tmp_path: Path) -> None:
    write(tmp_path / "fair.0.json", Coin())
    (tmp_path / DEFAULTS / "Coin.json").write_text('{"seed": 0, "device": "cpu"}')
    assert read_result(tmp_path / "fair.0.json").is_of(Coin())


def test_defaults_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "fair.0.json", Coin())
    (tmp_path / DEFAULTS / "Coin.json").unlink()
    with pytest.raises(TrellisError, match=r"Cannot read .*Coin\.json"):
        read_result(tmp_path / "fair.0.json")


@pytest.mark.parametrize("folder", sorted(HERE.glob("*/results")), ids=lambda path: path.parent.name)
def test_our_results_repeat_no_default(folder: Path) -> None:
    used = set()
    for path in folder.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        usual = json.loads((folder / DEFAULTS / f"{data['defaults']}.json").read_text(encoding="utf-8"))
        assert data["config"] == differences(merged(usual, data["config"]), usual)
        used.add(data["defaults"])
    assert used == {path.stem for path in (folder / DEFAULTS).iterdir()}
