"""An experiment is a folder with a TOML file for each run, and tables.toml, which describes the tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.common import COMMON
from experiments.paper import HERE, Analysis, Kind, Paper, load_paper, wanted
from experiments.results import Result, read_result
from trellis.config import RunConfig, load_config
from trellis.errors import TrellisError
from trellis.options import build, choose, parse_value, put, read_toml, split_override, suggestion

TABLES = "tables.toml"


@dataclass(frozen=True)
class Row:
    """One run in a table; `published` has the figures of the paper."""

    run: str
    label: str = ""
    published: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """A plot of a figure (y) over a fact (x), with one line for each value of another fact."""

    x: str
    y: str | list[str]  # one line each, if there are several
    lines: str = ""
    x_label: str = ""  # with units; by default the key, and the heading of the figure
    y_label: str = ""
    log_y: bool = False
    names: dict[str, str] = field(default_factory=dict)  # of lines, by the value of the fact


@dataclass(frozen=True)
class Table:
    """A table of the paper: facts come from the configuration of a run, figures from its results."""

    name: str
    title: str
    figures: list[str]
    rows: list[Row]
    facts: dict[str, str] = field(default_factory=dict)  # heading -> fact
    note: str = ""
    analysis: str = ""  # analyses of its runs, besides the common ones
    plot: Plot | None = None


@dataclass(frozen=True)
class Experiment:
    """The runs, tables and results of one paper."""

    folder: Path
    title: str
    published: str  # the heading of published figures
    tables: list[Table]
    paper: Paper  # what it declares, combined with what all papers share
    kinds: dict[str, Kind]  # kinds of runs by the prefix of their names, "" last

    @property
    def name(self) -> str:
        return name_of(self.folder)

    @property
    def results_folder(self) -> Path:
        return self.folder / "results"

    def runs(self) -> list[str]:
        """All runs with a TOML file: first those in the tables, in that order, then the others."""
        written = sorted(path.stem for path in self.folder.glob("*.toml") if path.name != TABLES)
        named = dict.fromkeys(row.run for table in self.tables for row in table.rows)
        return [run for run in named if run in written] + [run for run in written if run not in named]

    def kind_of(self, run: str) -> Kind:
        return next(kind for prefix, kind in self.kinds.items() if run.startswith(prefix))

    def config(self, run: str, overrides: Iterable[str] = (), seed: int | None = None) -> Any:
        """The configuration of a run from its TOML file, with overrides."""
        if run not in self.runs():
            raise TrellisError(f"{self.name} has no run {run!r}{suggestion(run, self.runs())}")
        config = read_run(self.folder / f"{run}.toml", self.kind_of(run).config, overrides)
        return config if seed is None else replace(config, seed=seed)

    def written(self, run: str) -> dict[str, Any]:
        """The content of the TOML file of a run, without defaults."""
        return tomllib.loads((self.folder / f"{run}.toml").read_text(encoding="utf-8"))

    @cached_property
    def configs(self) -> dict[str, Any]:
        return {run: self.config(run) for run in self.runs()}

    def fact(self, run: str, name: str) -> Any:
        return self.paper.fact(self.configs.get(run), name)

    @cached_property
    def results(self) -> list[Result]:
        """All existing results, by run and seed."""
        found = [read_result(path) for path in sorted(self.results_folder.glob("*.json"))]
        return sorted(found, key=lambda result: (result.run, result.seed))

    def analyses(self, run: str) -> dict[str, Analysis]:
        """The common analyses, and those that the tables require for a run."""
        needed = (table.analysis for table in self.tables if table.analysis and run in {row.run for row in table.rows})
        return {**COMMON.analyses, **{name: wanted("analysis", name, self.paper.analyses) for name in needed}}


def read_run(path: Path, kind: type, overrides: Iterable[str]) -> Any:
    if kind is RunConfig:
        return load_config(path, overrides).ordered()
    tables = read_toml(path)
    try:
        tables = asdict(build(kind, tables))
        for keys, text in map(split_override, overrides):
            put(tables, keys, parse_value(text, kind, keys))
        return build(kind, tables)
    except TrellisError as error:
        raise TrellisError(f"{path}: {error}") from error


def find(name: str) -> tuple[Experiment, str | None]:
    """The experiment NAME (built in, or a folder), and the run if the name is NAME/RUN."""
    for head, run in ((name, None), tuple(name.rpartition("/")[::2])):
        for folder in (base / text for base in (HERE, Path()) for text in (str(head), str(head).replace("-", "_"))):
            if head and (folder / TABLES).is_file():
                return read_experiment(folder.resolve()), run
    known = sorted(name_of(path.parent) for path in HERE.glob(f"*/{TABLES}"))
    raise TrellisError(f"There is no experiment {name!r}{suggestion(name.split('/')[0], known)}")


def name_of(folder: Path) -> str:
    """The name of an experiment: in folder names, which are Python packages, hyphens are underscores."""
    return folder.name.replace("_", "-") if folder.parent == HERE else folder.name


def read_experiment(folder: Path) -> Experiment:
    path, paper = folder / TABLES, COMMON | load_paper(folder)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        title, published = data["title"], data["published"]
        named = {**data.get("kinds", {}), "": data.get("kind", "training")}
        kinds = {prefix: choose(paper.kinds, kind, f"{path}: kind") for prefix, kind in named.items()}
        tables = [read_table(table) for table in data["tables"]]
        return Experiment(folder, title, published, tables, paper, kinds)
    except KeyError as error:
        raise TrellisError(f"{path} has no key {error}.") from error
    except (OSError, ValueError, TypeError) as error:
        raise TrellisError(f"{path} cannot be read as tables of an experiment: {error}.") from error


def read_table(data: dict[str, Any]) -> Table:
    rows = [Row(**row) for row in data.pop("rows")]
    plot = Plot(**data.pop("plot")) if "plot" in data else None
    return Table(**data, rows=rows, plot=plot)
