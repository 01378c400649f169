"""The claims of the papers, line by line, beside our figures: `python -m experiments claims > docs/papers.md`.

A file in claims/ has the claims of one paper. Figures are never typed: {RUN:FIGURE} stands for a stored figure (in
another experiment: {EXPERIMENT/RUN:FIGURE}), and {PATTERN:A<B} for the number of runs whose figure A is below B. A
claim also names the figures whose `order` its verdict rests on, and the sentences of our pages that it `quotes`."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import mean

from experiments.experiment import Experiment, find
from experiments.paper import HERE
from experiments.tables import BAR, figure_cell, seed_values
from trellis.errors import TrellisError

FOLDER = HERE / "claims"
PAPERS = ("scaling-hmm-lm", "kernel-softmax", "factorial-hmm", "lds-for-text", "densehmm")  # files, in this order
VERDICTS = ("confirmed", "stronger", "weaker", "not confirmed", "not tested")
HEADINGS = ("where", "claim", "ours", "verdict", "command")
REFERENCE = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what we found."""

    where: str  # in the paper
    claim: str
    verdict: str
    ours: str = ""
    command: str = ""  # by default, the commands that print the tables with our figures
    order: list[list[str]] = field(default_factory=list)  # references, or numbers, each list increasing
    quotes: dict[str, str] = field(default_factory=dict)  # file name -> a passage that the file must contain


@dataclass(frozen=True)
class Section:
    """The claims of one paper."""

    title: str
    experiment: str  # of references that name none
    about: str
    claims: list[Claim]


def sections() -> list[Section]:
    return [read_section(FOLDER / f"{name}.toml") for name in PAPERS]


def read_section(path: Path) -> Section:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return Section(**data | {"claims": [Claim(**claim) for claim in data["claims"]]})
    except (TypeError, KeyError) as error:
        raise TrellisError(f"{path} cannot be read as claims: {error}.") from error


experiment_of = cache(lambda name: find(name)[0])


def split_reference(text: str, section: Section) -> tuple[Experiment, str, str]:
    """The experiment, the run (or a pattern of runs) and the figure of a reference."""
    where, _, figure = text.partition(":")
    name, _, run = where.rpartition("/")
    return experiment_of(name or section.experiment), run, figure


def shown(text: str, section: Section) -> str:
    """What the page shows for a reference."""
    experiment, run, figure = split_reference(text, section)
    if "<" in figure:
        runs = compared(experiment, run)
        return f"{num_below(experiment, runs, figure)} of {len(runs)}"
    cell = figure_cell(experiment, run, figure)
    if not cell.filled:
        raise TrellisError(f"{{{text}}} has no current result.")
    return cell.text


def value(text: str, section: Section) -> float:
    """The mean over seeds of a reference, or a number."""
    if ":" not in text:
        return float(text)
    experiment, run, figure = split_reference(text, section)
    if "<" in figure:
        return num_below(experiment, compared(experiment, run), figure)
    return mean(seed_values(experiment, run, figure)[0])


def compared(experiment: Experiment, pattern: str) -> list[str]:
    runs = [run for run in experiment.runs() if fnmatch(run, pattern)]
    if not runs:
        raise TrellisError(f"No run of {experiment.name} matches {pattern!r}.")
    return runs


def num_below(experiment: Experiment, runs: list[str], figures: str) -> int:
    """The number of runs in which the first figure is below the second."""
    means = [[mean(seed_values(experiment, run, name)[0]) for name in figures.split("<")] for run in runs]
    return sum(one < other for one, other in means)


def command(claim: Claim, section: Section) -> str:
    names = [split_reference(text, section)[0].name for text in REFERENCE.findall(claim.ours)]
    return claim.command or "; ".join(f"python -m experiments table {name}" for name in dict.fromkeys(names))


def row(claim: Claim, section: Section) -> str:
    ours = REFERENCE.sub(lambda found: shown(found[1], section), claim.ours)
    commands = "; ".join(f"`{one}`" for one in command(claim, section).split("; ") if one)
    cells = (claim.where, claim.claim, ours, claim.verdict, commands)
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def counted(claims: list[Claim]) -> str:
    count = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])


def page() -> str:
    """docs/papers.md."""
    found = sections()
    lines = [(FOLDER / "introduction.md").read_text(encoding="utf-8").strip(), ""]
    lines += ["| paper | claims | verdicts |", "|---|---|---|"]
    lines += [f"| {one.title} | {len(one.claims)} | {counted(one.claims)} |" for one in found]
    for one in found:
        lines += ["", f"## {one.title}", "", one.about.strip(), ""]
        lines += [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
        lines += [row(claim, one) for claim in one.claims]
    return "\n".join(lines)
