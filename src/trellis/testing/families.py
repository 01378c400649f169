"""Checks of families: options, training, files and report."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from trellis.config import GIVEN, RunConfig, TaggedDataConfig, TrainConfig, load_config, run_config, with_settings
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel, PersistedModel
from trellis.models.files import FILE, load
from trellis.models.tagger import Tagger
from trellis.options import to_toml
from trellis.registry import Family, find_family, known, resolve
from trellis.testing.close import Check, assert_close, require, run_checks
from trellis.testing.language_models import CHECKS as LANGUAGE_MODEL
from trellis.testing.taggers import CHECKS as TAGGER
from trellis.training.callbacks import Callback
from trellis.training.run import Trained, train
from trellis.training.state import TrainState

SENTENCES = [
    *["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sleeps", "the cat runs"] * 8
]
TAGS = {"the": "D", "a": "D", "cat": "N", "dog": "N", "and": "C"}  # all others are verbs
BATCHES = {"lanes": 4, "window": 8, "tokens": 64}
SHORT = {"epochs": 3, "iterations": 5, "checkpoint_steps": 1}
SECTIONS = "data", "model", "batches", "train"
PARTS = "config", "data", "train", "model", "read", "fit", "evaluate", "report"
STOP = 2  # the step at which training is stopped
ROUNDING = 1e-4  # of results in float32
WITHOUT_TORCH = """
import sys
from trellis.registry import resolve
for path in sys.argv[1:]:
    resolve(path)
sys.exit("torch" in sys.modules)
"""


def check_family(family: str | Family, data: Sequence[Any] | None = None, **settings: Any) -> None:
    """Check a family: training, resuming, saving and loading, and the queries that its models support.

    A model of the family is trained on a few sentences, in memory and in a temporary folder.

    Parameters
    ----------
    family
        The name of the family, or the `Family` itself, which need not be installed.
    data
        Sentences to train on; by default, 40 sentences of up to 7 words, tagged if the family reads tagged text.
    settings : str, int, float, bool or dict
        Options that make the model small, as for `trellis.train`.

    Examples
    --------
    >>> from trellis.testing import check_family
    >>> check_family("bigram")
    """
    found = find_family(family) if isinstance(family, str) else family
    installed = isinstance(family, str)
    with nullcontext() if installed else known(found), tempfile.TemporaryDirectory() as folder:
        case = Case(found, data, settings, Path(folder))
        run_checks(f"The family {found.name}", case, CHECKS)
        kinds = {LanguageModel: LANGUAGE_MODEL, Tagger: TAGGER}
        checks = [check for kind, some in kinds.items() if isinstance(case.model, kind) for check in some]
        run_checks(f"The family {found.name}", case, checks)


class StoppedError(Exception):
    """Raised by `Stop`."""


class Stop(Callback):
    """A callback that ends training as a crash would."""

    def on_step(self, state: TrainState) -> None:
        if state.step == STOP:
            raise StoppedError


class Case:
    """A family and the models trained to check it."""

    def __init__(self, family: Family, data: Sequence[Any] | None, settings: dict[str, Any], folder: Path) -> None:
        self.family, self.settings, self.folder = family, settings, folder
        self.data = self.sentences() if data is None else data

    def sentences(self) -> Sequence[Any]:
        if not issubclass(self.family.load("data"), TaggedDataConfig):
            return SENTENCES
        return [[(word, TAGS.get(word, "V")) for word in sentence.split()] for sentence in SENTENCES]

    @property
    def texts(self) -> list[str]:
        """Some of the sentences, of different lengths, as text."""
        some = self.data[:4]
        return [one if isinstance(one, str) else " ".join(word for word, *_ in one) for one in some]

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of a small run."""
        own = {one.name for one in fields(self.family.load("train"))}
        short = {name: value for name, value in SHORT.items() if name in own}
        config = with_settings(self.family.name, {"batches": BATCHES, "train": short, "device": "cpu", **self.settings})
        return replace(config, data=replace(config.data, source=f"{GIVEN}>"))

    def train(self, folder: str = "", **choices: Any) -> Trained:
        return train(self.config, self.folder / folder if folder else None, data=self.data, **choices)

    @cached_property
    def trained(self) -> Trained:
        """The result of training with a run folder."""
        return self.train("run")

    @property
    def model(self) -> Any:
        return self.trained.model

    @cached_property
    def loaded(self) -> Any:
        """The model loaded from its file."""
        self.trained  # noqa: B018
        return load(self.folder / "run")


def parts(case: Case) -> None:
    """Every import string names a callable, and the `family` of the model's class is a family with this model."""
    family = case.family
    paths = [getattr(family, part) for part in PARTS] + [family.build] * bool(family.build)
    for path in [*paths, *family.learners.values(), *family.exports.values(), *family.imports.values()]:
        require(callable(resolve(path)), f"{path} is not callable")
    model = family.load("model")
    require(issubclass(model, PersistedModel), f"{family.model} is not a PersistedModel")
    require(find_family(model.family).model == family.model, f"the family {model.family} has another model")
    require(family.learners, "there is no learner")


def without_torch(case: Case) -> None:
    """Options can be listed without loading torch."""
    family = case.family
    code = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{WITHOUT_TORCH}"
    words = [sys.executable, "-c", code, family.config, family.data, family.train]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    require(ended.returncode == 0, ended.stderr or "torch was loaded")


def options(case: Case) -> None:
    """Every option has documentation and a valid default."""
    config = RunConfig(model=case.family.load("config")())
    for section in (getattr(config, name) for name in SECTIONS):
        for one in fields(section):
            about = one.metadata.get("option")
            require(about is not None or one.name == "family", f"{one.name} is not declared with `option`")
            if about is not None:
                require(about.doc.strip(), f"{one.name} has no documentation")
                about.check(getattr(section, one.name), one.name)


def defaults(case: Case) -> None:
    """The default configuration is the same after writing it to TOML and reading it back."""
    run, file = RunConfig(model=case.family.load("config")()), case.folder / "run.toml"
    for comments in (False, True):
        file.write_text(to_toml(run, comments))
        require(load_config(file) == run, "the configuration in the file differs")
    require(run_config({"model": {"family": case.family.name}}) == run, "the family's name alone gives another one")
    require(run.train.learner == next(iter(case.family.learners)), "the default learner is not the first one")


def trains(case: Case) -> None:
    """Training succeeds, and every score is finite."""
    scores = case.trained.scores
    require(scores is not None and scores.values, "there are no scores")
    wrong = {name: value for name, value in scores.values.items() if not isfinite(value)}  # type: ignore[union-attr]
    require(not wrong, f"scores that are not finite: {wrong}")
    about = case.model.about
    json.dumps(about)
    require({"corpus", "order", "training", "scores"} <= about.keys(), f"`about` has only {sorted(about)}")


def trains_without_a_folder(case: Case) -> None:
    """Training without a folder gives the same model."""
    assert_same(case.train().model, case.model)


def files(case: Case) -> None:
    """The run folder contains the model, its configuration and its results, and is not overwritten."""
    case.trained  # noqa: B018
    names = {path.name for path in (case.folder / "run").iterdir()}
    require({FILE, "config.toml", "results.json", "report.html"} <= names, f"there are only {sorted(names)}")
    written = load_config(case.folder / "run" / "config.toml")
    expected = case.config.ordered(written.batches.order)
    same = all(written.value(name) == expected.value(name) for name in expected.given)
    require(same if case.family.choose else written == expected, "config.toml has another configuration")
    try:
        case.train("run")
    except TrellisError:
        return
    raise AssertionError("a second run in the same folder was not rejected")


def loads(case: Case) -> None:
    """A loaded model has the settings of the saved one, and the same tensors bit for bit."""
    require(type(case.loaded) is type(case.model), f"it comes back as a {type(case.loaded).__name__}")
    require(case.loaded.settings() == case.model.settings(), f"its settings are {case.loaded.settings()}")
    require(case.loaded.about == json.loads(json.dumps(case.model.about)), "`about` differs")
    require(case.loaded.vocab.words == case.model.vocab.words, "its vocabulary differs")
    assert_same(case.loaded, case.model, 0.0)
    case.loaded.save(case.folder / "again")
    assert_same(load(case.folder / "again"), case.model, 0.0)


def resumes(case: Case) -> None:
    """Resuming a finished run does not train again; resuming a stopped run ends with the same model."""
    case.trained  # noqa: B018
    assert_same(case.train("run", resume=True).model, case.model)
    if not isinstance(case.config.train, TrainConfig):
        return
    try:
        case.train("stopped", callbacks=[Stop()])
    except StoppedError:
        assert_same(case.train("stopped", resume=True).model, case.model)
    else:
        raise AssertionError(f"training ended before step {STOP}: pass more sentences, or use more epochs")


def report(case: Case) -> None:
    """The family's report sections are Markup, and are in the report."""
    find_family(case.model.family)
    sections = case.family.load("report")(case.model)
    require(isinstance(sections, list) and all(isinstance(one, str) for one in sections), f"they are {sections!r:.80}")
    case.trained  # noqa: B018
    page = (case.folder / "run" / "report.html").read_text(encoding="utf-8")
    for section in sections:
        require(str(section) in page, f"the report lacks {str(section)[:80]}")


def presents_itself(case: Case) -> None:
    """The model has parameters, a one-line repr and an HTML table."""
    require(case.model.num_parameters() > 0, "it has no parameters")
    require(case.model.family in repr(case.model), f"repr is {case.model!r}")
    require("<table>" in case.model._repr_html_(), "there is no HTML table for notebooks")


def vectors(case: Case) -> None:
    """Each kind of `embed` returns one finite vector per word, the same for a sentence alone and in a list."""
    for kind in case.model.embed_kinds:
        together = case.model.embed(case.texts, kind)
        for text, one in zip(case.texts, together, strict=True):
            require(one.ndim == 2 and len(one) == len(text.split()), f"{kind}: the shape is {one.shape}")
            assert_close(Tensor(case.model.embed(text, kind)), one, ROUNDING, kind)


def assert_same(one: PersistedModel, other: PersistedModel, tolerance: float = ROUNDING) -> None:
    """Assert that two models have the same tensors."""
    mine, theirs = one.tensors(), other.tensors()
    require(mine.keys() == theirs.keys(), f"tensors {sorted(mine.keys() ^ theirs.keys())} are in one model alone")
    for name, value in mine.items():
        require(value.dtype == theirs[name].dtype, f"the dtype of {name} is {value.dtype}")
        assert_close(value, theirs[name], tolerance, f"tensor {name}")


CHECKS: list[Check] = [
    parts, without_torch, options, defaults, trains, trains_without_a_folder, files, loads, resumes, report,
    presents_itself, vectors,
]  # fmt: skip
