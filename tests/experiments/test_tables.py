"""Tables and plots out of results alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from toy_experiment import make_experiment, share_paper

from experiments.__main__ import main
from experiments.densehmm.config import DenseRun
from experiments.experiment import HERE, find
from experiments.plots import lines_of
from experiments.results import Result, write_result
from experiments.tables import show
from trellis.config import DataConfig, RunConfig
from trellis.options import to_tables

BASELINES = {f"{corpus}-{model}" for corpus in ("ptb", "wikitext2") for model in ("lstm-256", "ff-256", "kn5")}
BASELINES |= {"HUANGHMM-80", "SCL"}  # printed alone


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    return make_experiment(tmp_path)


def put(toys: Path, run: str, seed: int, overrides: tuple[str, ...] = (), **figures: float) -> Path:
    """A result as if it had been run."""
    config = find(str(toys))[0].config(run, overrides, seed)
    path = toys / "results" / f"{run}.{seed}.json"
    hardware = {"device": "toy", "torch": "2"}
    write_result(path, Result(run, seed, "", to_tables(config), {**figures}, {}, hardware, "0f", {}), config)
    return path


def table(toys: Path, style: str = "text") -> list[str]:
    return show(find(str(toys))[0], style).splitlines()


def test_missing_cells_and_published_figures(toys: Path) -> None:
    lines = table(toys)
    assert lines[2:9] == [
        "Sizes",
        "model  states  k  dropout  parameters  valid  elsewhere  valid - train  occupancy",
        "-----  ------  -  -------  ----------  -----  ---------  -------------  ---------",
        "HMM    4       2  none     -           -      5.5*       -              -",
        "HMM    8       4  none     -           -      5.1 P      -              -",
        "LSTM   –       –  –        -           -                 -              -",
        "A note.",
    ]
    assert lines[-1] == "filled 0/14"


def test_seeds_are_averaged_and_the_gap_is_derived(toys: Path) -> None:
    for seed, valid in enumerate((5.0, 6.0, 7.0)):
        put(toys, "small", seed, train=4.0, valid=valid, parameters=1234567, occupancy=0.25)
    row = next(line for line in table(toys) if line.startswith("HMM    4"))
    assert " ".join(row.split()) == "HMM 4 2 none 1.23M 6.0 ± 1.0 (3) 5.5* 2.0 ± 1.0 (3) 25.0%"
    assert table(toys)[-1] == "filled 4/14"
    assert "Measured on toy, torch 2. Source: 0f." in table(toys)


def test_a_result_of_another_configuration_is_marked_and_not_counted(toys: Path) -> None:
    put(toys, "small", 0, ("train.epochs=1",), valid=5.0)
    assert "5.0†" in "\n".join(table(toys))
    assert table(toys)[-1] == "filled 0/14"
    put(toys, "small", 1, ("device=cpu",), valid=6.0)  # seeds and devices make no other configuration
    assert "5.0" not in "\n".join(table(toys)).replace("5.5*", "")
    assert table(toys)[-1] == "filled 1/14"


def test_results_of_keys_no_longer_known_are_of_another_configuration(toys: Path) -> None:
    path = put(toys, "small", 0, valid=5.0)
    data = json.loads(path.read_text())
    data["config"]["model"]["forgotten"] = 1
    path.write_text(json.dumps(data))
    assert "5.0†" in "\n".join(table(toys))


def test_what_was_not_finite_is_missing(toys: Path) -> None:
    put(toys, "small", 0, valid=float("inf"), train=3.0)
    assert table(toys)[-1] == "filled 0/14"


def test_markdown(toys: Path) -> None:
    put(toys, "large", 0, valid=5.25)
    lines = table(toys, "markdown")
    assert "### Sizes" in lines
    assert "| HMM | 8 | 4 | none | - | 5.2 | 5.1 P | - | - |" in lines


def test_hyperparameters_are_those_of_the_toml(toys: Path) -> None:
    lines = table(toys)
    at = lines.index("Hyperparameters")
    assert [line.split() for line in lines[at + 1 : at + 5]] == [
        ["run", "states"],
        ["-----", "------"],
        ["small", "4"],
        ["large", "8"],
    ]
    assert "model.emission = brown, model.classes = 2" in lines[at + 5]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not the result of a run"),
        ("[1]", "is not the result of a run"),
        ('{"schema": 2, "run": "small"}', "is not the result of a run"),
        ('{"run": "small"}', "from an older Trellis"),
    ],
)
def test_broken_results(toys: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(toys, "small", 0)
    path.write_text(text)
    assert main(["table", str(toys)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert sentence in error


def test_a_result_under_another_name_is_refused(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(toys, "small", 0).rename(toys / "results" / "small.1.json")
    assert main(["table", str(toys)]) == 2
    assert "another run or seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("title =", "titel =", "has no key 'title'"),
        ("note =", "noet =", "cannot be read as tables"),
        ('"gap"', '"gip"', "the figure 'gip', which is not known; did you mean 'gap'?"),
        ('= "model.states"', '= "model.stats"', "the fact 'model.stats', which is not known"),
        ("title", "=", "cannot be read as tables"),
    ],
)
def test_broken_tables(toys: Path, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = toys / "tables.toml"
    path.write_text(path.read_text().replace(old, new))
    assert main(["table", str(toys)]) == 2
    assert sentence in capsys.readouterr().err


def test_plots_show_our_figures_and_published_ones(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing")
    put(toys, "small", 0, valid=5.75)
    put(toys, "small", 1, valid=5.25)
    put(toys, "large", 0, valid=5.25)
    experiment = find(str(toys))[0]
    assert experiment.tables[0].plot is not None
    ours, theirs = lines_of(experiment, experiment.tables[0], experiment.tables[0].plot)
    assert [point.value for point in ours.points] == [5.5, 5.25]
    assert [point.high - point.low for point in ours.points] == pytest.approx([2 * 0.125**0.5, 0.0])
    assert (theirs.name, theirs.hollow) == ("brown, elsewhere", True)
    assert [point.value for point in theirs.points] == [5.5, 5.1]
    for kind in ("svg", "pdf"):
        assert main(["plot", str(toys), "--format", kind]) == 0
        path = Path(capsys.readouterr().out.strip())
        assert path == toys / "plots" / f"sizes.{kind}"
        assert path.stat().st_size > 1000


def test_nothing_to_plot(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = toys / "tables.toml"
    path.write_text(re.sub(r"published = {.*?} }", "published = {} }", path.read_text()))
    assert main(["plot", str(toys)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("folder", sorted(HERE.glob("*/tables.toml")), ids=lambda path: path.parent.name)
def test_our_experiments_are_sound(folder: Path) -> None:
    """Every TOML is a run of Trellis and is named in a table; every row has one; everything asked for exists."""
    experiment = find(str(folder.parent))[0]
    named = {row.run for table in experiment.tables for row in table.rows}
    assert set(experiment.configs) <= named
    assert named - set(experiment.configs) <= BASELINES
    for table in experiment.tables:
        assert set(table.figures) <= set(experiment.paper.figures)
        assert table.analysis in {"", *experiment.paper.analyses}
        assert all(set(row.published) <= set(table.figures) for row in table.rows)
    assert len({table.name for table in experiment.tables}) == len(experiment.tables)
    assert show(experiment).splitlines()[-1].startswith("filled ")


def test_what_a_run_cannot_have_is_not_counted(toys: Path) -> None:
    path = toys / "tables.toml"
    path.write_text(path.read_text().replace('label = "LSTM"', 'label = "LSTM", published = { valid = "5" }'))
    assert table(toys)[-1] == "filled 0/10"  # a row of printed figures alone
    experiment = find(str(toys))[0]
    gap = experiment.paper.figure("gap")._replace(applies=lambda config: config.model.states == 8)
    paper = replace(experiment.paper, figures={**experiment.paper.figures, "gap": gap})
    shown = show(replace(experiment, paper=paper))
    assert shown.endswith("filled 0/9")
    small = next(line for line in shown.splitlines() if line.startswith("HMM    4"))
    assert small.split().count("-") == 3  # parameters, valid and occupancy


def test_ablations_have_one_budget() -> None:
    """The cells of scaling-hmm-lm, all but the large runs by corpus, differ in nothing but what they compare."""
    configs = find("scaling-hmm-lm")[0].configs
    cells = [config for run, config in configs.items() if run[0].isdigit()]
    assert len(cells) > 30
    assert len({config.train for config in cells}) == 1
    assert {config.batches.order for config in cells} == {"streams", "sentences"}
    assert {c.batches.lanes * c.batches.window for c in cells if c.batches.order == "streams"} == {2048}
    assert {c.batches.tokens for c in cells if c.batches.order == "sentences"} == {2048}
    assert {config.data for config in cells} == {DataConfig("ptb")}


def test_runs_of_another_kind_in_one_folder(toys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share_paper(toys, "scaling_hmm_lm", "densehmm")
    path = toys / "tables.toml"
    text = path.read_text()
    (toys / "cell-3.toml").write_text("[model]\nstates = 3\n")
    path.write_text('kinds = { "cell-" = "dense" }\n' + text)
    experiment = find(str(toys))[0]
    assert isinstance(experiment.config("cell-3"), DenseRun)
    assert isinstance(experiment.config("small"), RunConfig)
    assert "cell-3" in show(experiment)
    path.write_text('kinds = { "cell-" = "sparse" }\n' + text)
    assert main(["table", str(toys)]) == 2
    assert "kind is 'sparse', which is not recognised" in capsys.readouterr().err
