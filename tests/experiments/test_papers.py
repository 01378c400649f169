"""Papers are folders: each declares what it adds, and nothing else in the repository lists them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from toy_experiment import make_experiment

from experiments.__main__ import main
from experiments.common import COMMON
from experiments.experiment import HERE, find
from experiments.paper import load_paper
from trellis.errors import TrellisError

PAPERS = sorted(path.parent for path in HERE.glob("*/tables.toml"))
DECLARED = """
from experiments.paper import Figure, Kind, Outcome, Paper
from dataclasses import dataclass

@dataclass(frozen=True)
class Coin:
    sides: int = 2
    seed: int = 0
    device: str = "cpu"

def toss(job):
    return Outcome("air", {"heads": 1 / job.config.sides})

PAPER = Paper(kinds={"coin": Kind(Coin, toss)}, figures={"heads": Figure("p(heads)", "{:.2f}".format)},
              facts={"odd": lambda config: config.sides % 2 == 1})
"""
TABLES = """
title = "Coins"
published = "elsewhere"
kind = "coin"
tables = [{ name = "coins", title = "Coins", facts = { odd = "odd" }, figures = ["heads"], rows = [{ run = "fair" }] }]
"""


def imported(path: Path) -> set[str]:
    """The modules of experiments that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith("experiments.")}


@pytest.mark.parametrize("path", sorted(HERE.rglob("*.py")), ids=lambda path: str(path.relative_to(HERE)))
def test_no_module_imports_a_paper_but_its_own(path: Path) -> None:
    others = {f"experiments.{folder.name}" for folder in PAPERS if folder != path.parent}
    assert not {name for name in imported(path) if ".".join(name.split(".")[:2]) in others}


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_a_paper_declares_what_its_tables_use(folder: Path) -> None:
    """What it declares is its own: not common, and named in its tables."""
    paper, experiment = load_paper(folder), find(str(folder))[0]
    assert not set(paper.figures) & set(COMMON.figures)
    assert set(paper.facts) <= {
        *(fact for table in experiment.tables for fact in table.facts.values()),
        *(fact for table in experiment.tables if table.plot for fact in (table.plot.x, table.plot.lines)),
    }
    assert set(paper.analyses) <= {table.analysis for table in experiment.tables}
    assert set(paper.plots) <= {table.plot.x for table in experiment.tables if table.plot}
    assert {kind.config for kind in paper.kinds.values()} <= {kind.config for kind in experiment.kinds.values()}


@pytest.mark.parametrize("name", ["kernel-hmm", "kernel_hmm", "experiments/kernel-hmm", str(HERE / "kernel_hmm")])
def test_names_with_hyphens_and_folders_with_underscores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    assert find(name)[0].name == "kernel-hmm"
    experiment, run = find(f"{name}/ptb-4k-softmax")
    assert (experiment.folder, run) == (HERE / "kernel_hmm", "ptb-4k-softmax")


def test_a_folder_elsewhere_declares_its_own_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"paper.py": DECLARED, "tables.toml": TABLES, "fair.toml": "sides = 2\n"}.items():
        (tmp_path / name).write_text(text)
    assert main(["run", f"{tmp_path}/fair"]) == 0
    assert main(["table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "odd  p(heads)\n---  --------\nno   0.50" in shown
    assert shown.endswith("filled 1/1\n")


def test_a_folder_without_declarations_has_the_common_ones(tmp_path: Path) -> None:
    toys = make_experiment(tmp_path)
    (toys / "paper.py").unlink()
    experiment = find(str(toys))[0]
    assert experiment.paper == COMMON
    assert set(experiment.analyses("large")) == set(COMMON.analyses)
    with pytest.raises(TrellisError, match="the analysis 'unpartitioned', which is not known"):
        experiment.analyses("small")
