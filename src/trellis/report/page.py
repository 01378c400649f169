"""report.html: the results, the training and the states of a run on one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.models.base import LanguageModel
from trellis.report.curves import draw_curves, read_curves
from trellis.report.format import FIGURES, Column, compact, figure_rows, perplexity, probability, text, whole, word
from trellis.report.heatmap import shade
from trellis.report.markup import Markup, element, section
from trellis.report.states import state_sections
from trellis.report.style import STYLE
from trellis.storage import write_text

if TYPE_CHECKING:
    from trellis.train.run import RunResult

REPORT, METRICS = "report.html", "metrics.jsonl"
SENTENCES, LONGEST, ANSWERS = 3, 40, 6  # drawn, in tokens, and for the gap in one of them
HEAD = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
TITLES = {
    "hmm": "Hidden Markov model",
    "lstm": "LSTM",
    "rnn": "Recurrent network",
    "feedforward": "Feed-forward network",
}


def write_report(folder: Path, model: LanguageModel, result: RunResult) -> Path:
    """Write report.html into the folder of a run; the same model and figures always give the same bytes."""
    path = Path(folder) / REPORT
    sections = [
        header(model, result),
        results_section(result),
        training_section(path.parent / METRICS, result),
        *(state_sections(model) if isinstance(model, HMM) else ()),
        voice_section(model),
    ]
    write_text(path, document(f"Trellis: {title(model)}", element("main", *sections)))
    return path


def document(name: str, body: Markup) -> str:
    """A whole HTML document."""
    head = element("head", Markup(HEAD), element("title", name), element("style", Markup(STYLE)))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', body), lang='en')}\n"


def title(model: LanguageModel) -> str:
    return TITLES.get(model.family, f"{model.name.capitalize()} model")


def header(model: LanguageModel, result: RunResult) -> Markup:
    """The name of the model, its corpus, and the few numbers one would quote."""
    numbers = {"test perplexity": perplexity(result.figures[-1].test)} if result.figures else {}
    numbers |= {"states": whole(model.num_states)} if isinstance(model, HMM) else {}
    numbers |= {"parameters": compact(float(f"{model.num_parameters():.3g}")), "words": whole(len(model.vocab))}
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in numbers.items()]
    return element(
        "header",
        element("p", "Trellis", class_="kicker"),
        element("h1", title(model)),
        element("p", text(result.corpus), class_="corpus"),
        element("dl", *facts),
    )


def results_section(result: RunResult) -> Markup:
    """The table of results, the best of each column marked."""
    rows, columns = figure_rows(result.figures), list(FIGURES.values())
    if not rows:
        return Markup()
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
    caption = "Perplexity on each part of the corpus, and tokens scored per second. The best of each column is marked."
    return section("Results", caption, element("div", table, class_="wide"))


def _cell(column: Column, value: object, best: bool) -> Markup:
    shown = column.write(value)
    return element("td", element("strong", shown) if best else shown, **_side(column))


def _side(column: Column) -> dict[str, str]:
    return {} if column.is_text else {"class": "number"}


def training_section(metrics: Path, result: RunResult) -> Markup:
    """The training curves, beside the perplexity of the other models on valid; nothing where nothing was logged."""
    curves = read_curves(metrics)
    if not curves:
        return Markup()
    baselines = {row.model: row.valid for row in result.figures[:-1]}
    caption = "Perplexity while training; the ring is the best on valid. Dashed: the other models on the valid part."
    return section("Training", caption, draw_curves(curves, baselines))


def voice_section(model: LanguageModel) -> Markup:
    """Sample sentences of any model, and the cloze answer of one that can give it."""
    sentences = model.sample(SENTENCES, LONGEST)
    caption = f"Sentences drawn at random, at most {LONGEST} tokens each."
    return section(
        "In its own words",
        caption,
        *(element("blockquote", text(sentence) or "(an empty sentence)") for sentence in sentences),
        *(_cloze(model, sentences) if isinstance(model, HMM) else ()),
    )


def _cloze(model: HMM, sentences: list[str]) -> list[Markup]:
    """The longest of the sentences with its middle token missing, and the most probable tokens for the gap."""
    spoken = [sentence for sentence in sentences if sentence and GAP not in sentence]
    if not spoken:
        return []
    try:
        tokens = model.vocab.decode(model.encode_line(max(spoken, key=len))[0].tolist())
        middle = len(tokens) // 2
        question = model.vocab.join([*tokens[:middle], GAP, *tokens[middle + 1 :]])
        ranked = model.infill(question, ANSWERS, samples=1, whole=len(tokens) < LONGEST).gaps[0]
    except TrellisError:  # without <unk>, bytes cut from their characters cannot be read again
        return []
    answers = [
        element("li", element("span", word(token), style=f"--p:{shade(p):.3f}"), element("small", probability(p)))
        for token, p in ranked
    ]
    return [
        element("h3", "One word hidden"),
        element("p", f"The middle of the longest sentence was “{word(tokens[middle])}”.", class_="caption"),
        element("blockquote", text(question)),
        element("ol", *answers, class_="answers"),
    ]
