"""MODEL_CARD.md: what a model is, what it was trained on, how good it is, and what it is for."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trellis.corpus.licences import licence_of
from trellis.models.base import PersistedModel
from trellis.registry import Family, find_family
from trellis.report.format import columns_of, text, whole
from trellis.report.page import CONFIG, FACTS, SOFTWARE, trained_for
from trellis.storage import write_text
from trellis.tasks.scores import Scores

CARD = "MODEL_CARD.md"
GENERAL = (
    "The model has learned the language, the topics and the biases of its training text.",
    "Its scores are those of held-out parts of the same text; expect worse ones on other kinds of text.",
    "Rare sentences of the training text may be more probable under the model than other rare sentences, so the model "
    "can reveal whether a sentence was in its training text.",
)


def write_card(folder: Path, model: PersistedModel, scores: Scores) -> Path:
    """Write MODEL_CARD.md into a run folder."""
    path, family = Path(folder) / CARD, find_family(model.family)
    parts = [
        f"# Model card: {family.title}",
        f"{escaped(repr(model))}",
        bullets(facts_of(family, model)),
        "## Training text",
        bullets(text_of(model)),
        f"## Scores: {scores.title}",
        table(scores.rows) if scores.rows else bullets(scores.values),
        "## Intended use",
        family.use or "Research and experiments.",
        "## Limits",
        "\n".join(f"- {line}" for line in (*filter(None, [family.limits]), *GENERAL)),
        "## How it was trained",
        bullets(run_of(model)),
        f"The file `{CONFIG}` in this folder has all options:",
        fenced(path.parent / CONFIG),
    ]
    write_text(path, "\n\n".join(part for part in parts if part) + "\n")
    return path


def facts_of(family: Family, model: PersistedModel) -> dict[str, Any]:
    facts = {"family": f"{family.title} (`{family.name}`)", "parameters": whole(model.num_parameters())}
    facts |= {"states": whole(model.num_states)} if model.num_states else {}
    return facts | {"vocabulary": f"{whole(len(model.vocab))} words", "file": "`model.safetensors`"}


def text_of(model: PersistedModel) -> dict[str, Any]:
    """The training text and its licence; a text passed from Python has no name."""
    data, teacher = model.about.get("data", {}), model.about.get("teacher", {})
    licence = escaped(model.about.get("licence", "")) or licence_of(data.get("source", ""))
    facts = {"corpus": escaped(model.about.get("corpus", "unknown")), "licence": licence}
    return facts | ({"also": f"samples of a trained model ({escaped(teacher['family'])})"} if teacher else {})


def run_of(model: PersistedModel) -> dict[str, Any]:
    """Command, seed, hardware, software and duration, where they are known."""
    run, training = model.about.get("run", {}), model.about.get("training", {})
    facts = {name: f"`{text(run[key])}`" for name, key in FACTS.items() if run.get(key) not in (None, "")}
    software = [f"{name} {run[key]}" for key, name in SOFTWARE.items() if key in run]
    facts |= {"software": ", ".join(software)} if software else {}
    return facts | ({"training": trained_for(training)} if training else {})


def bullets(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The table of results, in Markdown."""
    rows = list(rows)
    columns = columns_of(rows[0])
    lines = [[column.heading for column in columns], ["---"] * len(columns)]
    lines += [
        [escaped(column.write(value)) for column, value in zip(columns, row.values(), strict=True)] for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fenced(config: Path) -> str:
    lines = config.read_text(encoding="utf-8", errors="replace").splitlines() if config.is_file() else []
    return "```toml\n" + "\n".join(map(text, lines)) + "\n```"


def escaped(value: object) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_<>|[]#" else c for c in text(value))
