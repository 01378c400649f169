"""The answers about one model that all families share, and queries written as links and as commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, urlencode

from trellis.errors import TrellisError
from trellis.explore.endpoints import Endpoint
from trellis.explore.later import Later
from trellis.explore.packed import StateTables
from trellis.models.base import PersistedModel
from trellis.registry import find_family
from trellis.report.curves import json_lines
from trellis.report.format import columns_of, text, whole
from trellis.report.page import METRICS

T = TypeVar("T")
Turn = Callable[[Callable[[], T]], T]  # runs a function when no other query uses the model
RESULTS = "results.json"
MOST_FREQUENT = 100  # words considered as examples
TIMES = "step", "epoch", "tokens", "seconds"
Answer = dict[str, Any]


class Views:
    """The explorer's views of a model. A subclass adds a method for each endpoint that makes sense for its family,
    and the names of its views, in the order of the page's menu."""

    views: ClassVar[tuple[str, ...]] = ()
    failure = ""  # why the background work has ended, if it failed
    later: Later | None = None  # computes slow answers in the background, if the page can ask again

    def __init__(self, model: Any, name: str = "", folder: Path | None = None) -> None:
        """`name` is how the command line refers to the model; `folder` is that of its file, if there is one."""
        self.model, self.name, self.folder = model, name or model.name, folder

    @property
    def num_classes(self) -> int | None:
        """The number of classes of states; None if there are none."""
        return None

    @property
    def has_corpus(self) -> bool:
        """Whether the training text of the model can be read."""
        return False

    def about(self) -> Answer:
        """Facts for the head of the page."""
        model = self.model
        return {
            "name": text(self.name),
            "family": model.family,
            "title": find_family(model.family).title,
            "states": model.num_states,
            "classes": self.num_classes,
            "vocabulary": len(model.vocab),
            "views": [*self.views, *["training"] * bool(self.metrics())],
            "facts": [[text(key), text(value)] for key, value in self.facts()],
            "scores": self.scores(),
            "examples": self.examples,
            "separator": model.vocab.join(["a", "b"])[1:-1],
        }

    @property
    def examples(self) -> list[str]:
        """Sentences to begin with."""
        return []

    def frequent_words(self) -> list[str]:
        """The words of the vocabulary, the most frequent first, without markers such as <eos>."""
        vocab = self.model.vocab
        pairs = sorted(zip(vocab.counts, vocab.words, strict=True), key=lambda pair: -pair[0])
        return [word for _, word in pairs[:MOST_FREQUENT] if not (word.startswith("<") and word.endswith(">"))]

    def facts(self) -> Iterable[tuple[str, str]]:
        """Names and values, as text."""
        model = self.model
        yield "model", model.name
        if model.num_states:
            yield "states", whole(model.num_states)
        yield "parameters", whole(model.num_parameters())
        yield "words", whole(len(model.vocab))
        if "corpus" in model.about:
            yield "corpus", model.about["corpus"]
        values = {name: value for name, value in model.about.get("scores", {}).items() if name != "parameters"}
        for name, column in zip(values, columns_of(values), strict=True):
            with suppress(TypeError, ValueError):  # the file may hold anything
                yield column.heading, column.write(values[name])

    def scores(self) -> list[Any]:
        """The table of results of the run."""
        file = None if self.folder is None else self.folder / RESULTS
        if file is None or not file.is_file():
            return []
        try:
            return list(json.loads(file.read_text(encoding="utf-8"))["scores"]["rows"])
        except (OSError, ValueError, LookupError, TypeError):
            return []

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of the run's metrics."""
        file = None if self.folder is None else self.folder / METRICS
        return list(json_lines(file)) if file is not None and file.is_file() else []

    def training(self) -> Answer:
        """Every logged figure, with the step, epoch, tokens and seconds at which it was logged."""
        lines = self.metrics()
        names = dict.fromkeys(name for line in lines for name in line if name not in TIMES)
        found = {name: [point(line, name) for line in lines if is_number(line.get(name))] for name in names}
        return {"series": [{"name": text(name), "points": points} for name, points in found.items() if points]}

    def tables(self) -> StateTables | None:
        """All states as arrays, for a page without a server; None if the model has no states."""
        return None

    def background(self, turn: Turn[Any]) -> None:
        """Do slow computations. `turn(function)` runs a function that uses the model.

        It waits until there is room among the queries; on a CPU, queries may run at the same time. Results may be kept
        in files beside the model."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def point(line: Mapping[str, Any], name: str) -> Answer:
    """A logged figure and when it was logged."""
    return {key: line[key] if is_number(line.get(key)) else None for key in TIMES} | {"value": line[name]}


def views_of(model: PersistedModel, name: str = "", folder: Path | None = None) -> Views:
    """The views that the family of a model defines."""
    return find_family(model.family).load("explore")(model, name, folder)


def answered(views: Views, endpoint: Endpoint, values: Mapping[str, Any]) -> Answer:
    """The answer of a model to a request; raises TrellisError if its family has no such answer."""
    method = getattr(views, endpoint.name, None)
    if method is None:
        title = find_family(views.model.family).title
        raise TrellisError(f"{endpoint.path} has no answer for this model, which is of the family {title!r}.")
    return method(**{PYTHON_NAMES.get(name, name): value for name, value in values.items() if name != "model"})


PYTHON_NAMES = {"not": "without", "id": "state"}  # of fields whose names are taken in Python


def link(endpoint: Endpoint, values: Mapping[str, Any]) -> str:
    """The fragment of the page's address that repeats a query; fields with their default value are left out."""
    defaults = {field.name: field.default for field in endpoint.fields}
    given = [(name, value) for name, value in values.items() if value != defaults[name]]
    pairs = [("ask", endpoint.name)] if endpoint.view == "questions" else []
    for name, value in given:
        pairs += [(name, one) for one in value] if isinstance(value, list | tuple) else [(name, written(value))]
    return f"#/{endpoint.view}" + (f"?{urlencode(pairs, quote_via=quote)}" if pairs else "")


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def command(*words: Any) -> str:
    """A command line for a shell. Unprintable characters are escaped, so that pasting it into a terminal is safe."""
    return " ".join(quoted(str(word)) for word in words)


def quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{text(escaped)}'"


def encoded(answer: Answer, digits: int | None = None) -> tuple[int, bytes]:
    """The status of an answer, 202 while it is being computed, and its JSON. Infinities and NaN become null; numbers
    are rounded to `digits` significant digits, if given."""
    status = 202 if answer.get("ready") is False else 200
    text = json.dumps(finite(answer, digits), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return status, text.encode("utf-8", "replace")


def finite(value: Any, digits: int | None = None) -> Any:
    """A JSON value without infinities and NaN, which JSON lacks."""
    if isinstance(value, float):
        rounded = value if digits is None else float(f"{value:.{digits}g}")
        return rounded if math.isfinite(rounded) else None
    if isinstance(value, dict):
        return {name: finite(one, digits) for name, one in value.items()}
    return [finite(one, digits) for one in value] if isinstance(value, list | tuple) else value
