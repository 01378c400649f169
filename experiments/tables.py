"""The paper's tables with our figures beside the published ones, out of results alone: nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any, NamedTuple, cast

from experiments.dense import CURVE
from experiments.experiment import Experiment, Table
from experiments.facts import fact, flat, write_fact
from experiments.results import Result
from experiments.tagging_config import AMBIGUOUS
from experiments.vectors import SPLITS
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.options import suggestion
from trellis.report.format import Column, compact, finite, log_prob, percent, perplexity, whole

MISSING, STALE = "-", "†"
BAR = r"\|"  # in a cell of Markdown
LEGEND = f"{MISSING} no result yet; {STALE} of another configuration than its TOML has now, and not counted as filled."

three_digits = finite("{:.3g}")
FIGURES = {
    "parameters": Column("parameters", lambda count: compact(float(f"{count:.3g}"))),
    "train": Column("train", perplexity),
    "valid": Column("valid", perplexity),
    "test": Column("test", perplexity),
    "gap": Column("valid - train", perplexity),
    "occupancy": Column("occupancy", percent),
    "effective_states": Column("effective states", whole),
    "emission_entropy": Column("H(emit)", log_prob),
    "transition_rank": Column("rank", whole),
    "transition_entropy": Column("H(transition)", log_prob),
    "visited_emission_entropy": Column("H(emit), by visits", log_prob),
    "visited_transition_entropy": Column("H(transition), by visits", log_prob),
    "deviation": Column("sum p - 1", three_digits),
    "seconds": Column("seconds", whole),
    "jobs": Column("runs at a time", whole),
    "first_epoch": Column("valid after 1 epoch", perplexity),
    "best_epoch": Column("epochs", whole),
    "memory": Column("GB of a step", lambda size: f"{size / 1e9:.2f}"),
    "loss_by_class": Column("loss, by class", finite("{:.3f}")),
    "loss_anywhere": Column("loss, anywhere", finite("{:.3f}")),
    "loss_deviation_by_class": Column("its sd, by class", finite("{:.4f}")),
    "loss_deviation_anywhere": Column("its sd, anywhere", finite("{:.4f}")),
    "tilted_gap": Column("tilted gap", three_digits),
    "jensen_gap": Column("Jensen gap", three_digits),
    "tighter": Column("tighter", three_digits),
    "gradient_noise_by_class": Column("gradient noise, by class", three_digits),
    "gradient_noise_anywhere": Column("gradient noise, anywhere", three_digits),
    "impossible_anywhere": Column("impossible draws, anywhere", percent),
}


BESIDE = {"pos-ssid": "subspace alone", "pos-word2vec": "word2vec"}  # runs that others are compared with
MODELS = {"em": "dense EM", "direct": "dense direct", "standard": "standard", "fair": "standard, fair"}
FIGURES |= {f"mad_{name}": Column(heading, finite("{:.5f}")) for name, heading in MODELS.items()}
FIGURES |= {f"analytic_{name}": Column(heading, finite("{:.5f}")) for name, heading in MODELS.items()}
FIGURES |= {f"nll_{name}": Column(heading, finite("{:.3f}")) for name, heading in MODELS.items()}
FIGURES |= {f"seconds_{name}": Column(f"s, {heading}", finite("{:.1f}")) for name, heading in MODELS.items()}
FIGURES |= {f"{part}_{name}": Column(f"{part}, {heading}", perplexity)
            for part in ("valid", "test") for name, heading in MODELS.items()}  # fmt: skip
FIGURES |= {f"{kernel}{after}": Column(kernel + after.replace("_", " "), finite("{:.3f}"))
            for kernel in KERNELS for after in ("", *(f"_after_{step}" for step in CURVE))}  # fmt: skip
STATES = {"viterbi": "joint Viterbi", "many": "many to one", "one": "one to one"}  # of taggers with hidden states
BUCKETS = {"all": "", "oov": "OOV ", "rare": "rare ", "oov+rare": "OOV or rare "}  # training has any, 0, 1-2, 0-2
TAGGING = {f"{bucket}_{what}": f"{heading}{what}" for bucket, heading in BUCKETS.items()
           for what in ("f1", "precision", "recall", "error")}  # fmt: skip
FIGURES |= {f"{split}_{name}": Column(f"{split} {heading}", finite("{:.2f}")) for split in ("valid", "test")
            for name, heading in (STATES | TAGGING | {"accuracy": "accuracy"}).items()}  # fmt: skip
FIGURES |= {f"{test}_p": Column(f"p ({test})", three_digits) for test in ("binomial", "bootstrap")}
FIGURES |= {f"{what}_{word}": Column(f"{what} of {word}", whole)
            for what in ("states", "tokens") for word in AMBIGUOUS}  # fmt: skip
FIGURES |= {"symbols": Column("symbols", whole), "attributes": Column("attributes", compact)}
FIGURES |= {f"gain_{part}": Column(f"gain, {part}", finite("{:.2f}")) for part in SPLITS}
FIGURES |= {f"pos_{part}": Column(f"POS, {part}", percent) for part in SPLITS[1:]}
FIGURES |= {f"margin_{run}": Column(f"over {name}", percent) for run, name in BESIDE.items()}
FIGURES |= {f"p_{run}": Column(f"p, {name}", three_digits) for run, name in BESIDE.items()}


class Cell(NamedTuple):
    text: str
    filled: bool = True


class Grid(NamedTuple):
    """A table as text."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str


def show(experiment: Experiment, style: str = "text") -> str:
    """Every table, the hyperparameters, where the figures come from, and how many cells are filled."""
    grids, filled, total = [], 0, 0
    for table in experiment.tables:
        cells = [[figure_cell(experiment, row.run, name) for name in table.figures] for row in table.rows]
        filled += sum(cell.filled for row in cells for cell in row)
        total += sum(map(len, cells))
        grids.append(grid(experiment, table, cells))
    parts = [*map(FORMATS[style], [*grids, hyperparameters(experiment)]), LEGEND, *origins(experiment.results)]
    return "\n\n".join([experiment.title, *parts, f"filled {filled}/{total}"])


def grid(experiment: Experiment, table: Table, cells: list[list[Cell]]) -> Grid:
    """Labels and facts, then each figure of ours with the published one on its right."""
    labels = ["model"] if any(row.label for row in table.rows) else []
    headings = [*labels, *table.facts]
    rows = [
        [row.label] * len(labels) + [write_fact(fact(experiment.configs.get(row.run), f)) for f in table.facts.values()]
        for row in table.rows
    ]
    for name, ours in zip(table.figures, zip(*cells, strict=True), strict=True):
        columns = {column(name).heading: [cell.text for cell in ours]}
        if any(name in row.published for row in table.rows):
            columns[experiment.published] = [row.published.get(name, "") for row in table.rows]
        headings += columns
        rows = [[*row, *more] for row, *more in zip(rows, *columns.values(), strict=True)]
    return Grid(table.title, headings, rows, table.note)


def column(name: str) -> Column:
    if name not in FIGURES:
        raise TrellisError(f"A table asks for the figure {name!r}, which is not known{suggestion(name, FIGURES)}")
    return FIGURES[name]


def figure_cell(experiment: Experiment, run: str, name: str) -> Cell:
    """One figure of a run: mean over seeds, standard deviation and number; a median has its quartiles instead."""
    values, current = seed_values(experiment, run, name)
    if not values:
        return Cell(MISSING, False)
    write = column(name).write
    text = write(mean(values))
    quartiles = [seed_values(experiment, run, f"{name}_{part}")[0] for part in (25, 75)]
    if all(quartiles):
        text += f" ({'/'.join(write(mean(part)) for part in quartiles)})"
    elif len(values) > 1 and stdev(values) > 0:
        text += f" ± {write(stdev(values))} ({len(values)})"
    return Cell(text if current else text + STALE, current)


def seed_values(experiment: Experiment, run: str, name: str) -> tuple[list[float], bool]:
    """A figure by seed, out of results of the present configuration where there are any; and whether there are."""
    config = experiment.configs.get(run)
    known = [(result, result.figure(name)) for result in experiment.results if result.run == run]
    current = [value for result, value in known if value is not None and is_current(result, config)]
    return current or [value for _, value in known if value is not None], bool(current)


def is_current(result: Result, config: Any) -> bool:
    return config is not None and result.is_of(config)


def hyperparameters(experiment: Experiment) -> Grid:
    """The appendix: what the TOML of every run says; what all of them say alike is in the note."""
    runs = {run: flat(experiment.written(run)) for run in experiment.runs()}
    known = dict.fromkeys(key for run in runs for key in flat(asdict(cast(Any, experiment.configs[run]))))
    keys = [key for key in known if any(key in run for run in runs.values())]
    varied = [key for key in keys if len({run.get(key) for run in runs.values()}) > 1]
    rows = [[name, *(write_fact(run[key]) if key in run else "" for key in varied)] for name, run in runs.items()]
    shared = {key: run[key] for run in runs.values() for key in keys if key not in varied}
    note = "All: " + ", ".join(f"{key} = {write_fact(value)}" for key, value in shared.items()) + "." if shared else ""
    short = [key.split(".")[-1] for key in varied]
    headings = [name if short.count(name) == 1 else key for name, key in zip(short, varied, strict=True)]
    note = f"{note} What a TOML leaves out has its default.".strip()
    return Grid("Hyperparameters", ["run", *headings], rows, note)


def origins(results: Sequence[Result]) -> list[str]:
    """Which machines and which source the figures come from."""
    if not results:
        return []
    devices = sorted({f"{r.hardware['device']}, torch {r.hardware['torch']}" for r in results})
    return [f"Measured on {'; '.join(devices)}. Source: {', '.join(sorted({r.source for r in results}))}."]


def as_text(grid: Grid) -> str:
    """Aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(grid.headings, *grid.rows, strict=True)]
    lines = [grid.headings, ["-" * width for width in widths], *grid.rows]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([grid.title, *drawn, *filter(None, [grid.note])])


def as_markdown(grid: Grid) -> str:
    lines = [grid.headings, ["---"] * len(grid.headings), *grid.rows]
    drawn = "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)
    return "\n\n".join([f"### {grid.title}", drawn, *filter(None, [grid.note])])


FORMATS: dict[str, Callable[[Grid], str]] = {"text": as_text, "markdown": as_markdown}
