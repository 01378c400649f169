"""Every family: its parts can be imported, its options are documented, and its defaults are a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from running import run
from trellis.cli.commands import tag
from trellis.config import RunConfig, load_config, run_config
from trellis.corpus.tagged import FORMATS, TAGGED
from trellis.corpus.tagsets import SCHEMES
from trellis.errors import TrellisError
from trellis.families.crf.templates import TEMPLATES
from trellis.families.factorial.mean_field import BOUNDS
from trellis.families.factorial.parameters import COMBINATIONS
from trellis.families.hmm.config import PARAMS
from trellis.families.hmm.parameters.features import FEATURE_MAPS
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.families.hmm.parameters.neural import PRECISIONS, TYINGS
from trellis.families.hmm.parameters.support import SHARES, SUPPORTS
from trellis.families.lds.learning import STARTS
from trellis.families.lds.parameters import NOISES
from trellis.learning.schedule import SCHEDULES
from trellis.models.base import PersistedModel
from trellis.options import Option, to_toml
from trellis.registry import FAMILIES, Family, find_family, resolve
from trellis.tasks.lm import READINGS
from trellis.training.fit import BATCHES

EVERY = pytest.mark.parametrize("name", FAMILIES)
SECTIONS = "data", "model", "batches", "train"
PARTS = "config", "data", "train", "model", "read", "fit", "evaluate", "report"
TABLES: dict[str, dict[str, Collection[str]]] = {  # the code behind each choice of an option
    "hmm": {
        "model.emission": SUPPORTS, "model.class_sizes": SHARES, "model.params": PARAMS, "model.tying": TYINGS,
        "model.kernel": KERNELS, "model.precision": PRECISIONS, "model.feature_map": FEATURE_MAPS,
        "train.schedule": SCHEDULES, "batches.order": ["", *BATCHES],
    },
    "fhmm": {"model.bound": BOUNDS, "model.combine": COMBINATIONS},
    "lds": {"model.noise": NOISES, "model.init": STARTS},
    "crf": {"model.template": ["", *TEMPLATES], "model.scheme": SCHEMES},
}  # fmt: skip


def options_of(config: Any) -> list[tuple[str, Option]]:
    """The options of a section by name."""
    return [(one.name, one.metadata["option"]) for one in dataclasses.fields(config) if "option" in one.metadata]


def defaults(name: str) -> RunConfig:
    return RunConfig(model=find_family(name).load("config")())


@EVERY
def test_every_part_can_be_imported(name: str) -> None:
    family = find_family(name)
    assert family.name == name
    for part in PARTS:
        assert callable(family.load(part))
    for path in [*family.learners.values(), *family.exports.values(), *family.imports.values()]:
        assert callable(resolve(path))
    model = family.load("model")
    assert issubclass(model, PersistedModel)
    assert find_family(model.family).model == family.model
    assert not family.build or callable(family.load("build"))


@EVERY
def test_defaults_are_a_run_that_toml_gives_back(name: str, tmp_path: Path) -> None:
    run = defaults(name)
    for comments in (False, True):
        (tmp_path / "run.toml").write_text(to_toml(run, comments))
        assert load_config(tmp_path / "run.toml") == run
    assert run_config({"model": {"family": name}}) == run
    assert run.train.learner == next(iter(run.family.learners))


@EVERY
def test_every_option_is_documented_and_its_default_allowed(name: str) -> None:
    run = defaults(name)
    for section in SECTIONS:
        config = getattr(run, section)
        documented = {key for key, _ in options_of(config)}
        assert {one.name for one in dataclasses.fields(config)} - documented <= {"family"}
        for key, about in options_of(config):
            assert about.doc.strip()
            about.check(getattr(config, key), key)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, tables in TABLES.items() for key in tables])
def test_choices_are_those_that_the_code_has(name: str, key: str) -> None:
    section, option = key.split(".")
    about = dict(options_of(getattr(defaults(name), section)))[option]
    assert set(about.choices) == set(TABLES[name][key])


def test_other_lists_of_names_are_complete() -> None:
    assert set(BATCHES) == set(READINGS)
    assert set(tag.DATA_SETS) == set(TAGGED)
    assert set(tag.FORMATS) == set(FORMATS)


@EVERY
def test_options_of_other_families_are_refused(name: str) -> None:
    own = {one.name for one in dataclasses.fields(defaults(name).model)}
    others = {one.name for other in FAMILIES for one in dataclasses.fields(defaults(other).model)} - own
    for key in sorted(others):
        with pytest.raises(TrellisError, match=f"Unknown key 'model.{key}' of the family {name}|is now"):
            run_config({"model": {"family": name, key: 1}})


@EVERY
def test_the_command_prints_commented_defaults(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", name) == 0
    text = capsys.readouterr().out
    assert f'family = "{name}"' in text
    assert run("config", name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"]["family"] == name


def test_a_family_is_data() -> None:
    assert dataclasses.is_dataclass(Family)
    with pytest.raises(TrellisError, match="now called 'hmm-tagger'"):
        find_family("tag-hmm")
    with pytest.raises(TrellisError, match="did you mean 'hmm'"):
        find_family("hmn")
    with pytest.raises(TrellisError, match="Cannot import"):
        resolve("trellis.nowhere:thing")
    with pytest.raises(TrellisError, match="Cannot import"):
        resolve("trellis.errors:nothing")


def test_another_family_leaves_options_behind() -> None:
    tables = {"model": {"states": 8, "params": "neural"}, "train": {"learner": "em", "epochs": 3, "lr": 0.5}}
    changed = run_config(tables, ["model.family=lstm", "model.dim=7"])
    assert (changed.model.family, changed.model.dim, changed.train.learner) == ("lstm", 7, "gradient")
    assert (changed.train.epochs, changed.train.lr) == (3, 0.5)
    assert run_config(tables, ["model.family=bigram"]).train.learner == "counts"
    assert run_config(tables, ["model.family=hmm"]).model.states == 8
