"""report.html: the results, training curves and states of a run on one self-contained page."""

import logging
from pathlib import Path
from typing import Any

from trellis.errors import limit_reached
from trellis.models.base import PersistedModel
from trellis.registry import find_family, resolve
from trellis.report.curves import draw_curves, read_curves
from trellis.report.format import Column, columns_of, compact, duration, text, whole
from trellis.report.markup import Markup, element, section
from trellis.report.style import STYLE
from trellis.storage import write_text
from trellis.tasks.scores import Scores

REPORT, METRICS, CONFIG = "report.html", "metrics.jsonl", "config.toml"
EXPLORER = "trellis.explore.embedded:explorer_section"  # (model, folder) -> Markup; it needs the families
SOFTWARE = {"trellis": "Trellis", "torch": "torch", "python": "Python"}
FACTS = {"command": "command", "seed": "seed", "hardware": "device"}
logger = logging.getLogger(__name__)
HEAD = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'


def write_report(folder: Path, model: PersistedModel, scores: Scores) -> Path:
    """Write report.html into a run folder; the same model and scores always give the same file."""
    path, family = Path(folder) / REPORT, find_family(model.family)
    parts = [
        header(family.title, model, scores),
        results_section(scores),
        training_section(path.parent / METRICS, scores),
        *family.load("report")(model),
        explorer_section(model, path.parent),
        run_section(path.parent / CONFIG, model),
    ]
    write_text(path, document(f"Trellis: {family.title}", element("main", *parts)))
    return path


def document(name: str, body: Markup) -> str:
    """A complete HTML document."""
    head = element("head", Markup(HEAD), element("title", name), element("style", Markup(STYLE)))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', body), lang='en')}\n"


def header(title: str, model: PersistedModel, scores: Scores) -> Markup:
    """The model's name, its corpus, and the main scores."""
    best = scores.headline
    numbers = {f"{best} {scores.title}": columns_of([best])[0].write(scores[best])} if best in scores.values else {}
    numbers |= {"states": whole(model.num_states)} if model.num_states else {}
    numbers |= {"parameters": compact(float(f"{model.num_parameters():.3g}")), "words": whole(len(model.vocab))}
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in numbers.items()]
    return element(
        "header",
        element("p", "Trellis", class_="kicker"),
        element("h1", title),
        element("p", text(model.about.get("corpus", "")), class_="corpus"),
        element("dl", *facts),
    )


def results_section(scores: Scores) -> Markup:
    """The table of results, with the best value on each held-out split marked."""
    if not scores.rows:
        return Markup()
    rows, columns = [list(row.values()) for row in scores.rows], columns_of(scores.rows[0])
    best = [column.best_of(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]
    lines = [
        element(
            "tr",
            *(_cell(column, value, row in top) for column, value, top in zip(columns, values, best, strict=True)),
            **({"class": "this"} if row == len(rows) - 1 else {}),
        )
        for row, values in enumerate(rows)
    ]
    heads = [element("th", column.heading, **_side(column)) for column in columns]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), class_="results")
    ranked = ", ".join(column.heading for column, top in zip(columns, best, strict=True) if top)
    caption = f"{scores.title.capitalize()}." + (f" The best value is marked: {ranked}." if ranked else "")
    return section("Results", caption, element("div", table, class_="wide"))


def _cell(column: Column, value: object, best: bool) -> Markup:
    shown = column.write(value)
    return element("td", element("strong", shown) if best else shown, **_side(column))


def _side(column: Column) -> dict[str, str]:
    return {} if column.is_text else {"class": "number"}


def training_section(metrics: Path, scores: Scores) -> Markup:
    """The training curves, with the validation perplexity of the other models; empty if nothing was logged."""
    curves = read_curves(metrics)
    if not curves.points:
        return Markup()
    baselines = {row["model"]: row["valid"] for row in scores.rows[:-1] if "valid" in row}
    caption = "Perplexity during training. Ring: the best validation perplexity. Dashed lines: that of other models."
    return section("Training", caption, draw_curves(curves, baselines))


def explorer_section(model: PersistedModel, folder: Path) -> Markup:
    """The explorer. A report is complete without it, so a failure must not end a run that has been trained."""
    try:
        return resolve(EXPLORER)(model, folder)
    except Exception as error:
        logger.warning(f"The report has no explorer: {limit_reached(error) or error}")
        logger.debug("its error", exc_info=True)
        return Markup()


def run_section(config: Path, model: PersistedModel) -> Markup:
    """How the model was trained: command, seed, hardware, software, duration and configuration."""
    run, training = model.about.get("run", {}), model.about.get("training", {})
    facts = {name: text(run[key]) for name, key in FACTS.items() if run.get(key) not in (None, "")}
    software = [f"{name} {run[key]}" for key, name in SOFTWARE.items() if key in run]
    facts |= {"software": ", ".join(software)} if software else {}
    facts |= {"training": trained_for(training)} if training else {}
    rows = [element("tr", element("th", name), element("td", value, class_=name)) for name, value in facts.items()]
    parts = [element("table", element("tbody", *rows), class_="facts")] if rows else []
    if config.is_file():
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = element("pre", "\n".join(map(text, lines)))
        parts.append(element("details", element("summary", f"configuration ({CONFIG})"), shown))
    return section("Run", "How to repeat it.", *parts) if parts else Markup()


def trained_for(training: dict[str, Any]) -> str:
    """The epochs, steps, tokens and time of the training, as text; unknown ones are left out."""
    known = [f"{whole(training[key])} {key}s" for key in ("epoch", "step") if training.get(key)]
    known += [f"{whole(training['tokens'])} tokens"] if training.get("tokens") else []
    return ", ".join([*known, *[duration(training["seconds"])] * ("seconds" in training)])
