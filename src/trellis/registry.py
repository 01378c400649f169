"""Model families by name. Other packages register families through the entry point group `trellis.families`.

A family names its parts by import strings, so that its options can be listed and checked without importing them."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trellis.errors import TrellisError
from trellis.extensions import FAMILIES as GROUP, entries
from trellis.options import RENAMED, shown, suggestion

FAMILIES = {
    "hmm": "trellis.families.hmm:FAMILY",
    "hmm-tagger": "trellis.families.hmm_tagger:FAMILY",
    "fhmm": "trellis.families.factorial:FAMILY",
    "lds": "trellis.families.lds:FAMILY",
    "ngram": "trellis.families.ngram:FAMILY",
    "unigram": "trellis.families.ngram:UNIGRAM",
    "bigram": "trellis.families.ngram:BIGRAM",
    "feedforward": "trellis.families.neural:FEEDFORWARD",
    "lstm": "trellis.families.neural:LSTM",
    "rnn": "trellis.families.neural:RNN",
    "pcfg": "trellis.families.pcfg:FAMILY",
    "crf": "trellis.families.crf:FAMILY",
}


@dataclass(frozen=True)
class Family:
    """A model family, such as `hmm`. Its parts are named by import strings, "package.module:name".

    Parameters
    ----------
    name
        The name, as in `--model`.
    title
        The name in tables and reports.
    config
        A subclass of `trellis.config.ModelConfig`: the options of [model].
    model
        A subclass of `trellis.models.base.PersistedModel`.
    learners
        The learners by name (`train.learner`), default first: functions (model, TrainConfig, total_steps) -> Learner.
    build
        A function (RunConfig, corpus) -> untrained model.
    choose
        A function (RunConfig, corpus, device) -> RunConfig that chooses options for the text and the machine.
    read
        A function (RunConfig, data) -> corpus. `data` is a text passed from Python, or None.
    fit
        A function (Job) -> Fitted that trains the model.
    evaluate
        A function (model, corpus, RunConfig) -> Scores.
    report
        A function (model) -> sections of the report.
    explore
        A function (model, name, folder) -> the object that answers the explorer's requests.
    exports
        The exporters by format, default first: functions (model, path) -> None.
    imports
        The importers by file suffix: functions (path) -> model.
    order
        The default order of the batches.
    data
        The options of [data].
    train
        The options of [train].
    use
        What models of this family are for: a text for the model card.
    limits
        What is approximate or missing in this family: a text for the model card.

    Examples
    --------
    >>> from trellis.registry import find_family
    >>> find_family("lds").title
    'Linear dynamical system'
    """

    name: str
    title: str
    config: str
    model: str
    learners: Mapping[str, str]
    build: str = ""
    choose: str = ""
    read: str = "trellis.corpus.load:read"
    fit: str = "trellis.training.fit:by_steps"
    evaluate: str = "trellis.families.language_model:evaluate"
    report: str = "trellis.families.language_model:sections"
    explore: str = "trellis.explore.language:default_views"
    exports: Mapping[str, str] = field(default_factory=dict)
    imports: Mapping[str, str] = field(default_factory=dict)
    order: str = "streams"
    data: str = "trellis.config:DataConfig"
    train: str = "trellis.config:TrainConfig"
    use: str = ""
    limits: str = ""

    def load(self, part: str) -> Any:
        """Import the object that the field `part` names."""
        return resolve(getattr(self, part))


def resolve(path: str) -> Any:
    """Import the object named by "package.module:name"."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TrellisError(f"Cannot import {path!r}: {error}.") from error


def find_family(name: str) -> Family:
    """The family of that name, built in or from an installed package."""
    if name in KNOWN:
        return KNOWN[name]
    if name in FAMILIES:
        return resolve(FAMILIES[name])
    if RENAMED.get(name) in FAMILIES:
        raise TrellisError(f"The family {name!r} is now called {RENAMED[name]!r}.")
    found = families()
    if name not in found:
        raise TrellisError(f"model.family is {shown(name)}, which is not recognised{suggestion(name, found)}")
    family = resolve(found[name])
    if not isinstance(family, Family):
        raise TrellisError(f"The entry point {name!r} of {GROUP} is {found[name]!r}, which is not a Family.")
    return family


def families() -> dict[str, str]:
    """The import string of every family, by name; those of other packages come last."""
    return FAMILIES | entries(GROUP) | dict.fromkeys(KNOWN, "")


@contextmanager
def known(family: Family) -> Iterator[None]:
    """A context in which a family can be found by its name without being installed, for tests and notebooks."""
    KNOWN[family.name] = family
    try:
        yield
    finally:
        del KNOWN[family.name]


KNOWN: dict[str, Family] = {}
