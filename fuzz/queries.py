"""Queries of models from Python: texts, gaps, constraints and counts, valid and absurd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import trellis
from fuzz.harness import FindingError
from fuzz.mutations import NUMBERS, STRINGS, any_text, any_value
from fuzz.small import OPTIONS, WORDS, model
from trellis import constraints
from trellis.errors import TrellisError

PIECES = [*WORDS, "(", ")", "[", "]", "|", "*", "+", "?", "{1,3}", "{0,99999}", "{3,1}", ".", "\\", "^", "$", "(?=a)",
          "___", "___{1,3}", "a-z", "\\d", "😀", " "]  # fmt: skip
COUNTS = [0, 1, 2, 3, -1, 2**31, 2**62, 2**63, 2**64, 10**400, 1.5, "3", None, True]


def without_nan(value: Any) -> None:
    """Raise a finding if a result contains NaN."""
    if isinstance(value, float | np.ndarray | torch.Tensor | np.generic):
        array = np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise FindingError("a result is NaN")
    elif isinstance(value, list | tuple):
        for entry in value[:20]:
            without_nan(entry)


class Target:
    """Query small models of several families."""

    def __init__(self, folder: Path) -> None:
        names = ["hmm", "hmm", "hmm", "fhmm", "lds", "ngram", "lstm", "pcfg", "hmm-tagger", "crf"]
        characters = trellis.train(["abcab", "bcab"] * 10, tokenizer="characters", device="cpu", **OPTIONS["hmm"])
        self.models = [*map(model, names), characters.model]

    def honest(self) -> None:
        """Every query of every model, also so that everything is compiled."""
        for found, sentence in [*((one, "the cat sees") for one in self.models[:-1]), (self.models[-1], "abc")]:
            queries: list[Callable[[], Any]] = [
                lambda: found.sample(1000, 100),  # noqa: B023
                lambda: found.log_prob([sentence] * 100),  # noqa: B023
                lambda: found.posterior([sentence] * 100),  # noqa: B023
                lambda: found.viterbi([sentence] * 100),  # noqa: B023
                lambda: found.embed([sentence] * 100),  # noqa: B023
                lambda: found.infill(["___ " + sentence + " ___"] * 10, samples=100),  # noqa: B023
                lambda: found.constrain(constraints.contains(sentence), 1, 30).best(),  # noqa: B023
                lambda: found.tag([sentence.split()]),  # noqa: B023
            ]
            for query in queries:
                with suppress(TrellisError, AttributeError):
                    query()

    def case(self, random: Random) -> None:
        found = random.choice(self.models)
        query = random.choice(QUERIES)
        try:
            without_nan(query(found, random))
        except AttributeError as error:
            if f"{type(found).__name__!r} object has no attribute" not in str(error):
                raise
            raise TrellisError("not a query of this family") from error


def text(random: Random) -> Any:
    """A sentence, several, tokens, or something else."""
    one = lambda: any_text(random, [*WORDS, "___"])  # noqa: E731
    return random.choice([one, one, one, lambda: [one(), one()], lambda: one().split(), lambda: any_value(random)])()


def count(random: Random) -> Any:
    return random.choice(COUNTS) if random.random() < 0.5 else random.randint(1, 5)


def seed(random: Random) -> Any:
    return random.choice([0, 1, 7, *COUNTS, *NUMBERS])


def constraint(random: Random) -> Any:
    makers = [constraints.contains, constraints.banned, constraints.begins, constraints.ends, constraints.template,
              constraints.tokens, constraints.regex]  # fmt: skip
    pieces = [random.choice(PIECES if random.random() < 0.9 else STRINGS) for _ in range(random.randint(0, 8))]
    made = random.choice(makers)(random.choice([" ", ""]).join(pieces))
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        other = constraints.contains(random.choice(WORDS))
        made = random.choice([lambda: made & other, lambda: made | other, lambda: ~made, lambda: made + other])()  # noqa: B023
    return made


def constrained(found: Any, random: Random) -> Any:
    span = [0, 10] if random.random() < 0.7 else [count(random), count(random)]
    one = found.constrain(constraint(random), *span)
    prompt = random.choice(["", "", any_text(random, WORDS, 4)])
    actions: list[Callable[[], Any]] = [
        lambda: one.log_prob(prompt),
        lambda: one.sample(count(random), prompt, seed(random)),
        lambda: one.best(prompt),
        lambda: one.expected_length(prompt),
    ]
    return random.choice(actions)()


QUERIES: list[Callable[[Any, Random], Any]] = [
    lambda found, random: found.log_prob(text(random)),
    lambda found, random: found.token_log_probs(text(random)),
    lambda found, random: found.sample(count(random), count(random), seed(random)),
    lambda found, random: found.sample(random.randint(1, 3), 5, seed(random)),
    lambda found, random: found.viterbi(text(random)),
    lambda found, random: found.posterior(text(random)),
    lambda found, random: found.embed(text(random)),
    lambda found, random: found.predict(text(random), count(random)),
    lambda found, random: found.infill(text(random), count(random), count(random), seed(random)),
    lambda found, random: found.infill(text(random)),
    lambda found, random: found.tag(text(random)),
    lambda found, random: found.states(count(random)),
    constrained,
    constrained,
    constrained,
]
