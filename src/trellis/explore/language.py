"""The answers about a language model: surprisal, next words, samples."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from trellis.corpus.tokenize import UNK
from trellis.errors import TrellisError
from trellis.explore.views import Answer, Views, command
from trellis.models.base import LanguageModel, PersistedModel, Ranked
from trellis.tasks.lm import Evaluation, check_source, data_of

LONGEST_SENTENCE = 100  # tokens
MOST_TOKENS = 300  # of a text
EXAMPLES, SAMPLES, SHORT = 3, 20, 16  # examples to show, number of samples they are chosen from, maximum tokens


class LanguageViews(Views):
    """Views of a model that assigns probabilities to words."""

    views: ClassVar[tuple[str, ...]] = ("sentence", "questions")
    model: LanguageModel

    @property
    def has_corpus(self) -> bool:
        try:
            check_source(data_of(self.model).source)
        except TrellisError:
            return False
        return "data" in self.model.about and data_of(self.model).source != "-"

    @cached_property
    def examples(self) -> list[str]:
        """Sampled sentences of moderate length, preferably without unknown words."""
        found = [one for one in self.model.sample(SAMPLES, SHORT, 1) if self.is_text(one)]
        found.sort(key=lambda one: (one.count(UNK), abs(len(one.split()) - SHORT // 2)))
        return [one for one in found if one.strip()][:EXAMPLES]

    def words_of(self, text: str, gap: str | None = None) -> tuple[np.ndarray, list[str], list[bool]]:
        """The ids of a text's words, the words as typed, and which of them are in the vocabulary."""
        ids = self.model.encode_line(text, gap=gap)[0].cpu().numpy()
        if len(ids) > MOST_TOKENS:
            raise TrellisError(f"The text has {len(ids)} words; the explorer reads at most {MOST_TOKENS}.")
        words = self.model.vocab.split(text.removesuffix("\n"), gap)
        return ids, words, [word == gap or word in self.model.vocab.index for word in words]

    def check_length(self, text: str) -> None:
        """Raise if the beginning of a sentence, which may be empty, is too long."""
        if text.strip():
            self.words_of(text)

    def score(self, text: str) -> Answer:
        """Surprisal in bits of each word and of <eos>."""
        ids, words, known = self.words_of(text)
        log_probs = cast(np.ndarray, self.model.token_log_probs(ids)).astype(np.float64)
        total = float(log_probs.sum())
        return {
            "words": [*words, self.model.vocab.words[self.model.vocab.eos]],
            "known": [*known, True],
            "surprisal": in_bits(log_probs),
            "log_prob": total,
            "perplexity": Evaluation(total, log_probs.size).perplexity,
            "command": command("trellis", "score", self.name, text, "--tokens"),
        }

    def predict(self, text: str, top: int) -> Answer:
        """The most probable next words."""
        self.check_length(text)
        ranked = cast(Ranked, self.model.predict(text, top))
        items = [{"word": word, "prob": prob, "states": []} for word, prob in ranked]
        return {"items": items, "command": self.python(f"predict({text!r}, {top})")}

    def sample(self, n: int, seed: int, prompt: str) -> Answer:
        """Sampled sentences, with their log-probabilities."""
        if prompt:
            raise TrellisError(
                f"Samples of a {self.model.name} model cannot begin with a prompt: prompts are for HMMs."
            )
        sentences = self.model.sample(n, LONGEST_SENTENCE, seed)
        items = [{"text": one, "log_prob": self.log_prob(one)} for one in sentences]
        return {"items": items, "command": command("trellis", "sample", self.name, "-n", n, "--seed", seed)}

    def is_text(self, sentence: str) -> bool:
        """Whether the text of a sample can be encoded again."""
        try:
            return self.model.encode_line(sentence) is not None
        except TrellisError:
            return False

    def log_prob(self, sentence: str) -> float | None:
        """log p(sentence); None if the text of a sample cannot be encoded again."""
        try:
            return float(cast(float, self.model.log_prob(sentence)))
        except TrellisError:
            return None

    def python(self, call: str) -> str:
        """The command line that calls a method of the model."""
        return command("python", "-c", f"import trellis; print(trellis.load({self.name!r}).{call})")


def default_views(model: PersistedModel, name: str = "", folder: Path | None = None) -> Views:
    """The views of a family that has none of its own."""
    kind = LanguageViews if isinstance(model, LanguageModel) else Views
    return kind(model, name, folder)


def in_bits(log_probs: Any) -> list[float]:
    """Surprisal in bits, given log-probabilities in nats [T]."""
    values = torch.as_tensor(log_probs, dtype=torch.float64)
    return (0.0 - values / math.log(2)).tolist()
