"""What a paper adds to the common experiments: kinds of runs, figures, facts, analyses and plots.

The folder of a paper declares them as PAPER in paper.py; the common modules import no paper by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from experiments.facts import flat
from experiments.results import Figures, Result
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.options import suggestion, to_tables
from trellis.report.format import finite

HERE = Path(__file__).parent
MODULE = "paper"  # of a folder, without .py

three_digits = finite("{:.3g}")
Analysis = Callable[[LanguageModel, RunConfig, Corpus], Figures]


class Figure(NamedTuple):
    """A column of a table. A figure that was not measured under this name is computed from the whole result."""

    heading: str
    write: Callable[[float], str]
    derive: Callable[[Result], float] | None = None
    applies: Callable[[Any], bool] = lambda config: True  # whether a run of this configuration has this figure


@dataclass(frozen=True)
class Job:
    """One run with one seed."""

    run: str
    config: Any
    folder: Path  # the folder of the experiment's runs
    force: bool  # whether to discard an existing run
    analyses: Mapping[str, Analysis]
    config_of: Callable[[str], Any]  # another run of the same experiment


@dataclass(frozen=True)
class Outcome:
    """The figures of a run, and its corpus."""

    corpus: str
    figures: Figures
    training: dict[str, Any] = field(default_factory=dict)  # empty: the seconds of the whole run
    errors: dict[str, str] = field(default_factory=dict)  # analyses that failed, and why


class Kind(NamedTuple):
    """A kind of run: the dataclass for its TOML file, and the function that executes it."""

    config: type
    run: Callable[[Job], Outcome]


@dataclass(frozen=True)
class Paper:
    """The declarations of a paper, by the names used in tables.toml."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    facts: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # of a configuration
    analyses: Mapping[str, Analysis] = field(default_factory=dict)  # of trained language models
    plots: Mapping[str, Callable[[Result], list[tuple[Any, float]]]] = field(default_factory=dict)  # x -> points
    pictures: Mapping[str, Callable[[], tuple[Any, Any]]] = field(default_factory=dict)  # besides those of tables

    def __or__(self, other: Paper) -> Paper:
        return Paper(*({**getattr(self, one.name), **getattr(other, one.name)} for one in fields(Paper)))

    def figure(self, name: str) -> Figure:
        return wanted("figure", name, self.figures)

    def value(self, result: Result, name: str) -> float | None:
        """A figure of a result; None if it was not measured or is not finite."""
        derive = self.figures[name].derive if name in self.figures else None
        try:
            return derive(result) if derive else result.figures[name]
        except (KeyError, TypeError):
            return None

    def fact(self, config: Any, name: str) -> Any:
        """A named fact, or the value of a key "section.key"; None if there is no configuration."""
        if config is None:
            return None
        known = {**flat(to_tables(config)), **self.facts}
        found = wanted("fact", name, known)
        return found(config) if name in self.facts else found


def wanted(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Look up what a table names; raises if it is unknown."""
    if name not in known:
        raise TrellisError(f"A table names the {what} {name!r}, which is not known{suggestion(name, known)}")
    return known[name]


def load_paper(folder: Path) -> Paper:
    """The declarations of a folder, which may be anywhere; empty if it has no paper.py."""
    path = folder / f"{MODULE}.py"
    if not path.is_file():
        return Paper()
    if folder.parent == HERE:
        return importlib.import_module(f"{__package__}.{folder.name}.{MODULE}").PAPER
    spec: Any = importlib.util.spec_from_file_location(str(path), path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PAPER
