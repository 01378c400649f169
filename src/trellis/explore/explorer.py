"""One or two models, and the answers to all requests about them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trellis.errors import TrellisError, limit_reached
from trellis.explore.contexts import in_context, shortened
from trellis.explore.endpoints import Endpoint
from trellis.explore.fields import read_fields
from trellis.explore.language import LanguageViews, in_bits
from trellis.explore.later import Later, NotReadyError
from trellis.explore.turns import LANES
from trellis.explore.views import Answer, Turn, Views, answered, command, link, views_of
from trellis.models.files import BUNDLED, find_model, load
from trellis.tasks.compare import Text, require_same
from trellis.tasks.lm import in_text_order, load_split, reading_of

logger = logging.getLogger(__name__)
MOST_DIFFERENCES, COMPARED_TOKENS = 40, 5_000
BEFORE, AFTER = 12, 3  # tokens of context


class Explorer:
    """Answers requests about one or two models."""

    def __init__(self, views: Sequence[Views], version: str = "") -> None:
        self.views, self.version = list(views), version

    @classmethod
    def open(cls, paths: Sequence[str | Path], device: str = "cpu", version: str = "") -> Explorer:
        """Load the models of files or run folders."""
        return cls([open_views(path, device) for path in paths], version)

    @property
    def lanes(self) -> int:
        """The number of queries that may run at the same time: one on a GPU, where CUDA graphs have buffers of their
        own."""
        return LANES if all(one.model.device.type == "cpu" for one in self.views) else 1

    def prepare(self, turn: Turn[Any]) -> None:
        """Compute slow answers, in a thread in the background. If this fails, later requests report why. From now on,
        answers that take long are computed in the background, too."""
        for views in self.views:
            views.later = Later()
        for views in self.views:
            try:
                views.background(turn)
            except Exception as error:
                views.failure = one_sentence(error)
                logger.debug("background", exc_info=error)

    def answer(self, endpoint: Endpoint, given: Mapping[str, Any]) -> Answer:
        """The answer to a request; raises TrellisError if a field is wrong, or the model does not support the
        request."""
        values = read_fields(endpoint.fields, given)
        try:
            found = self.found(endpoint, dict(values))
        except NotReadyError as error:
            return {"ready": False, "progress": error.progress, "doing": error.doing}
        return found | ({"link": link(endpoint, values)} if endpoint.view else {})

    def found(self, endpoint: Endpoint, values: dict[str, Any]) -> Answer:
        if not endpoint.both:
            return answered(self.model(values["model"]), endpoint, values)
        values.pop("model", None)
        return getattr(self, endpoint.name)(**values)

    def model(self, number: int) -> Views:
        if number >= len(self.views):
            raise TrellisError(f"There is no model {number}; {len(self.views)} was opened, with the number 0.")
        return self.views[number]

    def about(self) -> Answer:
        """The version of Trellis, and facts about the models."""
        models = [one.about() for one in self.views]
        return {"version": self.version, "models": models, "corpus": any(one.has_corpus for one in self.views)}

    def compare(self, text: str) -> Answer:
        """The surprisal of a text under both models, or where they differ most on their validation text."""
        scorers = [one for one in self.views if isinstance(one, LanguageViews)]
        if len(scorers) < 2:
            raise TrellisError("Two language models are compared; start 'trellis explore' with two of them.")
        if not text:
            line = command("trellis", "eval", *(one.name for one in self.views), "--split", "valid")
            return {"words": [], "surprisal": [[], []], "differences": self.differences, "command": line}
        scored = [one.score(text) for one in scorers]
        if scored[0]["words"] != scored[1]["words"]:
            raise TrellisError("The models divide this text into different words, so that they cannot be compared.")
        return {"words": scored[0]["words"], "surprisal": [one["surprisal"] for one in scored], "differences": [],
                "command": "; ".join(one["command"] for one in scored)}  # fmt: skip

    @cached_property
    def differences(self) -> list[Answer]:
        """The tokens at the beginning of the validation text whose surprisal differs most, in context."""
        models = [one.model for one in self.views]
        texts = [Text(model.vocab, shortened(load_split(model, None, "valid"), COMPARED_TOKENS)) for model in models]
        require_same(texts[0], texts[1], self.views[0].name, self.views[1].name)
        pairs = zip(models, texts, strict=True)
        bits = np.array([in_bits(in_text_order(model, reading_of(model)(text.split))) for model, text in pairs])
        worst = np.argsort(-np.nan_to_num(np.abs(bits[0] - bits[1])), kind="stable")[:MOST_DIFFERENCES]
        return [in_context(*texts[0], int(t), BEFORE, AFTER) | {"bits": bits[:, t].tolist()} for t in worst]


def one_sentence(error: Exception) -> str:
    """A sentence that says why the map could not be computed."""
    reason = str(error) if isinstance(error, TrellisError) else limit_reached(error) or f"{type(error).__name__}."
    return f"The map of the states could not be computed: {reason}"


def open_views(path: str | Path, device: str) -> Views:
    """The views of the model of a file or run folder."""
    model, file = load(path, None, device), find_model(path)
    return views_of(model, str(path), None if file == BUNDLED else file.parent)
