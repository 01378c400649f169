"""From a TOML to a result: what is written, what is skipped, what is begun anew, and what is said where it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy_experiment import make_experiment, read, run

from experiments import analyses
from experiments.__main__ import main
from experiments.common import COMMON
from trellis.errors import TrellisError
from trellis.progress import set_quiet


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    set_quiet()


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    return make_experiment(tmp_path)


def test_a_result_says_what_was_run_where_and_what_came_out(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(toys, "--seed", 3, of="small") == 0
    result = read(toys, "small.3")
    assert capsys.readouterr().out.startswith("small.3: train ")
    assert (result["run"], result["seed"], result["config"]["seed"]) == ("small", 3, 3)
    assert result["config"]["model"]["states"] == 4
    assert result["training"]["outcome"] == "epochs"
    assert result["hardware"].keys() == {"device", "torch", "jobs"}
    assert len(result["source"]) == 16
    assert result["errors"] == {}
    figures = result["figures"]
    assert all(1 < figures[split] < 7 for split in ("train", "valid", "test"))
    assert 0 < figures["occupancy"] <= 1
    assert 0 <= figures["transition_entropy"] <= 1.4
    assert figures["deviation"] < 1e-5
    assert figures["gradient_noise_by_class"] > 0


def test_chosen_analyses_and_no_report(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(toys, "--analysis", "normalisation", of="large") == 0
    figures = read(toys, "large.0")["figures"]
    assert "deviation" in figures
    assert "occupancy" not in figures
    (model,) = toys.parent.rglob("model.safetensors")
    assert not (model.parent / "report.html").exists()
    assert run(toys, "--analysis", "normalization", "--force", of="large") == 1
    assert "normalisation" in capsys.readouterr().err


def test_models_without_states_have_their_own_figures(toys: Path) -> None:
    assert run(toys, "--set", "model.family=bigram", of="large") == 0
    result = read(toys, "large.0")
    figures = {"parameters", "train", "valid", "bits_per_character", "deviation", "contexts"}
    assert result["figures"].keys() == figures  # other settings than those of the run: no test text
    assert run(toys, "--set", "model.family=bigram", "--test", "--force", of="large") == 0
    result = read(toys, "large.0")
    assert result["figures"].keys() == figures | {"test"}
    assert result["training"]["seconds"] > 0
    assert result["errors"] == {}


def test_results_repeat_themselves(toys: Path, tmp_path: Path) -> None:
    results = []
    for attempt in ("one", "two"):
        assert run(toys, "--out", tmp_path / attempt, "--force", of="small") == 0
        results.append(json.loads((tmp_path / attempt / "small.0.json").read_text()))
        assert results[-1]["training"].pop("seconds") > 0
    assert results[0] == results[1]
    assert not (toys / "results").exists()


def test_a_result_stays_unless_forced(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(toys, of="small") == 0
    path = toys / "results" / "small.0.json"
    before = path.stat().st_mtime_ns
    assert run(toys, of="small") == 0
    assert "is there; --force" in capsys.readouterr().out
    assert run(toys, "--set", "train.epochs=3", of="small") == 0
    assert "another configuration" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before
    assert run(toys, "--set", "train.epochs=3", "--force", of="small") == 0
    assert read(toys, "small.0")["training"]["epoch"] == 3


def test_a_training_goes_on_as_the_same_only(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(toys, of="small") == 0
    first = read(toys, "small.0")
    (toys / "results" / "small.0.json").unlink()
    assert run(toys, "--set", "train.max_seconds=99", of="small") == 0  # finished already: measured again
    assert read(toys, "small.0")["figures"] == first["figures"]
    (toys / "results" / "small.0.json").unlink()
    assert run(toys, "--set", "train.pseudocount=1", of="small") == 1
    assert "another configuration; --force starts again" in capsys.readouterr().err


def test_a_run_that_failed_at_once_can_be_put_right(toys: Path) -> None:
    assert run(toys, "--set", "model.classes=3", of="small") == 1
    assert run(toys, of="small") == 0


def test_all_runs_each_in_a_process_of_its_own(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toys / "broken.toml").write_text((toys / "small.toml").read_text().replace("classes = 2", "classes = 3"))
    assert run(toys, of="small") == 0
    capsys.readouterr()
    assert run(toys, "--jobs", 2) == 1
    said = capsys.readouterr()
    assert "small.0: " in said.out
    assert "large.0: train " in said.out
    assert said.err == (
        "experiments: broken.0 failed: 4 states cannot be divided among 3 Brown classes; try model.states = 3.\n"
    )
    assert read(toys, "large.0")["hardware"]["jobs"] == 2
    assert sorted(path.name for path in (toys / "results").iterdir()) == ["defaults", "large.0.json", "small.0.json"]


def test_a_failed_analysis_does_not_lose_the_training(
    toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setitem(COMMON.analyses, "states", fail)
    assert run(toys, of="small") == 1
    assert "the analysis 'states' failed: RuntimeError: out of memory" in capsys.readouterr().err
    result = read(toys, "small.0")
    assert result["errors"] == {"states": "RuntimeError: out of memory"}
    assert result["figures"]["valid"] > 1
    assert "occupancy" not in result["figures"]


def test_an_unexpected_error_is_told_too(
    toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr("experiments.training.train", fail)
    assert run(toys, of="small") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "experiments: small.0 failed: ValueError: no luck"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "scaling-hmm"], "There is no experiment 'scaling-hmm'; did you mean 'scaling-hmm-lm'?"),
        (["table", "nothing/at/all"], "There is no experiment 'nothing/at/all'; choose from "),
        (["run", "scaling-hmm-lm/ptb-63k"], "scaling-hmm-lm has no run 'ptb-63k'; did you mean 'ptb-64k'?"),
        (["plot", "scaling-hmm-lm/ptb-64k"], "Pass the whole experiment, 'scaling-hmm-lm', not one of its runs."),
        (["run", "scaling-hmm-lm/ptb-64k", "--set", "model.stats=3"], "Unknown key 'model.stats'"),
    ],
)
def test_errors_in_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_an_interrupted_run_leaves_no_result(
    toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.training.train", interrupt)
    assert run(toys, of="small") == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (toys / "results").exists()


def test_one_sentence_for_an_error() -> None:
    assert analyses.describe(TrellisError("A sentence.")) == "A sentence."


def test_memory_is_measured_later_where_it_failed(toys: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(COMMON.analyses, "memory", lambda *given: 1 / 0)
        assert run(toys, of="small") == 1
    before = read(toys, "small.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["memory", str(toys)]) == 2
    assert "on a GPU" in capsys.readouterr().err
    monkeypatch.setattr(analyses, "memory", lambda model, config, corpus: {"memory": 5e8})
    assert main(["memory", str(toys)]) == 0
    assert capsys.readouterr().out == "small.0: 0.50 GB\n"
    after = read(toys, "small.0")
    assert (after["figures"].pop("memory"), after["errors"]) == (5e8, {})
    assert after["training"].pop("memory_source") == after["source"]
    assert after == before | {"errors": {}}
    assert main(["memory", str(toys)]) == 0
    assert capsys.readouterr().out == ""
