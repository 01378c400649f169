"""What a paper adds to the common experiments: kinds of runs, figures, facts, analyses and plots.

The folder of a paper declares them as PAPER in its paper.py; the common modules import no paper by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from experiments.facts import flat
from experiments.results import Figures, Result
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.options import suggestion
from trellis.report.format import finite

HERE = Path(__file__).parent
MODULE = "paper"  # of a folder, without .py

three_digits = finite("{:.3g}")
Analysis = Callable[[LanguageModel, RunConfig, Corpus], Figures]


class Figure(NamedTuple):
    """A column of a table. A figure that is not measured under its own name is derived from the whole result."""

    heading: str
    write: Callable[[float], str]
    derive: Callable[[Result], float] | None = None


@dataclass(frozen=True)
class Job:
    """One run with one seed."""

    run: str
    config: Any
    folder: Path  # where the trainings of the experiment are kept
    force: bool  # whether to discard a training that is there
    analyses: Mapping[str, Analysis]
    config_of: Callable[[str], Any]  # another run of the same experiment


@dataclass(frozen=True)
class Outcome:
    """What a run measured, and on which corpus."""

    corpus: str
    figures: Figures
    training: dict[str, Any] = field(default_factory=dict)  # empty: the seconds of the whole run
    errors: dict[str, str] = field(default_factory=dict)  # analyses that failed, and why


class Kind(NamedTuple):
    """A kind of run: the dataclass that its TOML fills in, and the function that runs it."""

    config: type
    run: Callable[[Job], Outcome]


@dataclass(frozen=True)
class Paper:
    """Everything by the name that tables.toml uses for it."""

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
        """A figure of a result; None where it was not measured, or is not finite."""
        derive = self.figures[name].derive if name in self.figures else None
        try:
            return derive(result) if derive else result.figures[name]
        except (KeyError, TypeError):
            return None

    def fact(self, config: Any, name: str) -> Any:
        """A named fact, or the value of a key "section.key"; None where there is no configuration."""
        if config is None:
            return None
        known = {**flat(asdict(config)), **self.facts}
        found = wanted("fact", name, known)
        return found(config) if name in self.facts else found


def wanted(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """What a table asks for by name."""
    if name not in known:
        raise TrellisError(f"A table asks for the {what} {name!r}, which is not known{suggestion(name, known)}")
    return known[name]


def load_paper(folder: Path) -> Paper:
    """What the folder declares, here or elsewhere; nothing where it has no paper.py."""
    path = folder / f"{MODULE}.py"
    if not path.is_file():
        return Paper()
    if folder.parent == HERE:
        return importlib.import_module(f"{__package__}.{folder.name}.{MODULE}").PAPER
    spec: Any = importlib.util.spec_from_file_location(str(path), path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PAPER
