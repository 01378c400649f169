"""An experiment is a folder: a TOML for each run, and tables.toml, which says where their figures belong."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.dense_config import DenseRun
from experiments.results import Result, read_result
from experiments.tagging_config import TaggingRun
from experiments.vectors_config import VectorRun
from trellis.config import RunConfig, load_config
from trellis.errors import TrellisError
from trellis.options import build, parse_value, put, read_toml, split_override, suggestion

HERE = Path(__file__).parent
TABLES = "tables.toml"
KINDS: dict[str, type] = {
    "training": RunConfig,
    "dense": DenseRun,
    "tagging": TaggingRun,
    "vectors": VectorRun,
}  # what the TOML of a run describes
AnyRun = RunConfig | DenseRun | TaggingRun | VectorRun


@dataclass(frozen=True)
class Row:
    """One run in a table; `published` are figures as they were printed elsewhere."""

    run: str
    label: str = ""
    published: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """Which figure over which fact, and the fact of which every value has a line of its own."""

    x: str
    y: str | list[str]  # several figures have a line each
    lines: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the paper: facts come from the configuration of a run, figures from its results."""

    name: str
    title: str
    figures: list[str]
    rows: list[Row]
    facts: dict[str, str] = field(default_factory=dict)  # heading -> fact
    note: str = ""
    analysis: str = ""  # that its runs need besides the usual ones
    plot: Plot | None = None


@dataclass(frozen=True)
class Experiment:
    """The runs, tables and results of one paper."""

    folder: Path
    title: str
    published: str  # the heading of published figures
    tables: list[Table]
    kind: str = "training"
    kinds: dict[str, str] = field(default_factory=dict)  # of runs whose names begin otherwise: beginning -> kind

    @property
    def name(self) -> str:
        """As on the command line; folders are importable, so theirs has underscores."""
        return name_of(self.folder)

    @property
    def results_folder(self) -> Path:
        return self.folder / "results"

    def runs(self) -> list[str]:
        """Every run that has a TOML, in order of importance: as the tables name them, then any other."""
        written = sorted(path.stem for path in self.folder.glob("*.toml") if path.name != TABLES)
        named = dict.fromkeys(row.run for table in self.tables for row in table.rows)
        return [run for run in named if run in written] + [run for run in written if run not in named]

    def kind_of(self, run: str) -> str:
        """What kind of a run it is: the experiment's, unless its name begins with one of another."""
        return next((kind for beginning, kind in self.kinds.items() if run.startswith(beginning)), self.kind)

    def config(self, run: str, overrides: Iterable[str] = (), seed: int | None = None) -> Any:
        """What the TOML of a run says, with other values on top."""
        if run not in self.runs():
            raise TrellisError(f"{self.name} has no run {run!r}{suggestion(run, self.runs())}")
        kind = KINDS[self.kind_of(run)]
        path = self.folder / f"{run}.toml"
        config: Any = read_run(path, kind, overrides)
        return config if seed is None else replace(config, seed=seed)

    def written(self, run: str) -> dict[str, Any]:
        """What the TOML of a run says itself, defaults left out."""
        return tomllib.loads((self.folder / f"{run}.toml").read_text(encoding="utf-8"))

    @cached_property
    def configs(self) -> dict[str, AnyRun]:
        return {run: self.config(run) for run in self.runs()}

    @cached_property
    def results(self) -> list[Result]:
        """Every result there is, by run and seed."""
        found = [read_result(path) for path in sorted(self.results_folder.glob("*.json"))]
        return sorted(found, key=lambda result: (result.run, result.seed))

    def analyses(self, run: str) -> list[str]:
        """What tables ask of a run besides the usual measures."""
        return [table.analysis for table in self.tables if table.analysis and run in {row.run for row in table.rows}]


def read_run(path: Path, kind: type, overrides: Iterable[str]) -> Any:
    if kind is RunConfig:
        return load_config(path, overrides)
    tables = read_toml(path)
    try:
        tables = asdict(build(kind, tables))
        for keys, text in map(split_override, overrides):
            put(tables, keys, parse_value(text, kind, keys))
        return build(kind, tables)
    except TrellisError as error:
        raise TrellisError(f"{path}: {error}") from error


def find(name: str) -> tuple[Experiment, str | None]:
    """The experiment called NAME (one of ours, or a folder), and the run where it is NAME/RUN."""
    for head, run in ((name, None), tuple(name.rpartition("/")[::2])):
        for folder in (base / text for base in (HERE, Path()) for text in (str(head), str(head).replace("-", "_"))):
            if head and (folder / TABLES).is_file():
                return read_experiment(folder.resolve()), run
    known = sorted(name_of(path.parent) for path in HERE.glob(f"*/{TABLES}"))
    raise TrellisError(f"There is no experiment {name!r}{suggestion(name.split('/')[0], known)}")


def name_of(folder: Path) -> str:
    return folder.name.replace("_", "-")


def read_experiment(folder: Path) -> Experiment:
    path = folder / TABLES
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        main, others = data.get("kind", "training"), data.get("kinds", {})
        for kind in (main, *others.values()):
            if kind not in KINDS:
                raise TrellisError(f"{path}: kind is {kind!r}, which is not known{suggestion(kind, KINDS)}")
        title, published = data["title"], data["published"]
        return Experiment(folder, title, published, [read_table(table) for table in data["tables"]], main, others)
    except KeyError as error:
        raise TrellisError(f"{path} has no key {error}.") from error
    except (OSError, ValueError, TypeError) as error:
        raise TrellisError(f"{path} cannot be read as tables of an experiment: {error}.") from error


def read_table(data: dict[str, Any]) -> Table:
    rows = [Row(**row) for row in data.pop("rows")]
    plot = Plot(**data.pop("plot")) if "plot" in data else None
    return Table(**data, rows=rows, plot=plot)
