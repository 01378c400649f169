"""Configuration: what is written is read back, and every mistake is named with the nearest right word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from trellis.config import DataConfig, RunConfig, TrainConfig, load_config, run_config
from trellis.errors import TrellisError
from trellis.options import to_toml


@given(
    source=st.text(st.characters(exclude_categories=["Cs"])),
    lr=st.floats(0, 1000),
    epochs=st.integers(1, 10**12),
    lower=st.booleans(),
)
def test_toml_round_trip(
    tmp_path_factory: pytest.TempPathFactory, source: str, lr: float, epochs: int, lower: bool
) -> None:
    config = RunConfig(data=DataConfig(source=source, lower=lower), train=TrainConfig(lr=lr, epochs=epochs), seed=3)
    path = tmp_path_factory.getbasetemp() / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    assert load_config(tmp_path / "run.toml") == RunConfig()


def test_overrides() -> None:
    changed = run_config({}, ["train.lr=1", "data.source=1", "data.column=2", "seed=7", "data.lower=true"])
    data = DataConfig(source="1", column="2", lower=True)
    expected = replace(RunConfig(), train=TrainConfig(lr=1.0), data=data, seed=7)
    assert changed == expected
    assert isinstance(changed.train.lr, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nlearning = 1", r"run\.toml: Unknown key 'train\.learning'; did you mean 'learner'\?"),
        ("[trian]\nlr = 1", r"run\.toml: Unknown key 'trian'; did you mean 'train'\?"),
        ("colour = 1", r"run\.toml: Unknown key 'colour'; choose from data, model"),
        ("[train]\nlr = 'fast'", r"run\.toml: train\.lr must be a number, not 'fast'"),
        ("[train]\nepochs = 1.5", r"run\.toml: train\.epochs must be an integer, not 1\.5"),
        ("[train]\nepochs = true", r"run\.toml: train\.epochs must be an integer, not True"),
        ("[train]\nlr = -1", r"run\.toml: train\.lr is -1\.0: it must be at least 0"),
        ("[train]\naverage = 1.0", r"train\.average is 1\.0: it must be in \[0, 1\)"),
        ("[train]\nepochs = 0", "Training would never end"),
        ("train = 3", "train must be a table, not 3"),
        ("x y", r"run\.toml: .*line 1"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(TrellisError, match=message):
        load_config(tmp_path / "run.toml")


@pytest.mark.parametrize("override", ["train.lr", "train.lrr=1", "tran.lr=1", "train=3", "seed.x=3", "seed=1.5", "=3"])
def test_mistakes_in_an_override_are_errors(override: str) -> None:
    with pytest.raises(TrellisError):
        run_config({}, [override])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match=r"Cannot read the configuration .*absent\.toml"):
        load_config(tmp_path / "absent.toml")


@pytest.mark.parametrize(("epochs", "max_steps", "total"), [(2, 0, 20), (2, 7, 7), (2, 70, 20), (0, 7, 7)])
def test_total_steps(epochs: int, max_steps: int, total: int) -> None:
    assert TrainConfig(epochs=epochs, max_steps=max_steps).total_steps(10) == total


RENAMED_KEYS = {
    "hmm": {
        "alone": "singletons",
        "shares": "class_sizes",
        "live": "states_per_word",
        "characters": "spelling",
        "spread": "init_std",
    },
    "hmm-tagger": {"common": "min_kind", "backing": "backoff", "spread": "init_std"},
    "lds": {"begin": "init", "words": "max_words"},
    "rnn": {"start": "init_from"},
    "bigram": {"crossing": "cross_sentences"},
    "ngram": {"crossing": "cross_sentences"},
}


@pytest.mark.parametrize(
    ("family", "old", "new"), [(family, *pair) for family, pairs in RENAMED_KEYS.items() for pair in pairs.items()]
)
def test_a_renamed_key_says_its_new_name(family: str, old: str, new: str) -> None:
    with pytest.raises(TrellisError, match=rf"^The key 'model\.{old}' is now 'model\.{new}'\.$"):
        run_config({"model": {"family": family, old: 1}})


def test_a_renamed_key_of_another_family_is_unknown() -> None:
    with pytest.raises(TrellisError, match=r"^Unknown key 'model\.crossing' of the family hmm; "):
        run_config({"model": {"crossing": True}})


@pytest.mark.parametrize("family", ["hmm", "fhmm"])
def test_a_renamed_value_says_its_new_name(family: str) -> None:
    with pytest.raises(TrellisError, match=r"^model\.params = 'scalar' is now called 'table'\.$"):
        run_config({"model": {"family": family, "params": "scalar"}})


def test_a_renamed_family_says_its_new_name() -> None:
    with pytest.raises(TrellisError, match=r"^The family 'tag-hmm' is now called 'hmm-tagger'\.$"):
        run_config({"model": {"family": "tag-hmm"}})
