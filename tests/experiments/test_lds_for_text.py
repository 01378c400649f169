"""Vectors learned from a small text, and the way from a TOML to the margin over another run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_experiment import share_paper

from experiments.__main__ import main
from experiments.lds_for_text import vectors
from experiments.lds_for_text.dense_system import DenseSystem
from experiments.universal import MAPS
from lds_oracle import markov_text
from trellis.corpus.tagged import Tagged
from trellis.errors import TrellisError
from trellis.families.lds.config import LDSConfig

WORDS = [f"w{letter}" for letter in "abcdefghijkl"]
RUN = '{top}\n[model]\nfamily = "lds"\ndim = 3\nblocks = 3\n{model}\n[train]\nepochs = 2\n'
TABLES = """
title = "Toys"
published = "elsewhere"
kind = "vectors"

[[tables]]
name = "pos"
title = "Tags"
facts = { h = "model.dim" }
figures = ["gain_valid", "pos_test", "margin_pos-ssid", "p_pos-ssid"]
rows = [{ run = "em" }, { run = "pos-ssid" }]
"""


def sentences(seed: int) -> list[list[str]]:
    return [[WORDS[i] for i in line] for line in markov_text(seed, words=12).reshape(-1, 10)]


@pytest.fixture
def text() -> vectors.Text:
    """Words whose tag is their number modulo two."""
    tags = dict(zip(WORDS, 6 * ["A", "B"], strict=True))
    parts = {name: sentences(0)[:count] for name, count in (("train", 100), ("valid", 20), ("test", 20))}
    tagged = {name: Tagged(part, [[tags[word] for word in words] for words in part]) for name, part in parts.items()}
    return vectors.Text(sentences(0), tagged, 1)


def test_a_run_from_its_toml_to_its_table(text, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(vectors, "read_text", lambda config: text)
    monkeypatch.setattr("experiments.lds_for_text.probe.COMMON", 0)
    toys = tmp_path / "toys"
    toys.mkdir()
    (toys / "tables.toml").write_text(TABLES)
    share_paper(toys, "lds_for_text")
    (toys / "em.toml").write_text(RUN.format(top='beside = "pos-ssid"', model=""))
    (toys / "pos-ssid.toml").write_text(RUN.format(top="", model="") + 'learner = "subspace"\n')
    assert main(["run", f"{toys}/em"]) == 0
    figures = json.loads((toys / "results" / "em.0.json").read_text())["figures"]
    assert figures["gain_train"] > 0
    assert 0 < figures["pos_test"] <= 1
    assert {"margin_pos-ssid", "p_pos-ssid"} <= set(figures)
    assert main(["table", str(toys)]) == 0
    assert "over subspace alone" in capsys.readouterr().out


def test_a_classifier_sees_neighbours_of_the_same_sentence() -> None:
    rows, sentences = torch.arange(1.0, 11.0).view(5, 2), [["a", "b", "c"], ["d", "e"]]
    found = vectors.beside(rows, sentences, 1)
    zero = torch.zeros(2)
    wanted = [(zero, rows[0], rows[1]), (rows[0], rows[1], rows[2]), (rows[1], rows[2], zero), (zero, rows[3], rows[4]),
              (rows[3], rows[4], zero)]  # fmt: skip
    assert torch.equal(found, torch.stack([torch.cat(three) for three in wanted]))
    assert torch.equal(vectors.beside(rows, sentences, 0), rows)


def test_a_text_has_the_words_of_several_corpora(tmp_path: Path, monkeypatch) -> None:
    tagged = Tagged([["Cats", "1990"]], [["NNS", "CD"]])
    monkeypatch.setattr(vectors, "load_tagged", lambda name, split: tagged)
    monkeypatch.setitem(MAPS, "penn", lambda: {"NNS": "NOUN", "CD": "NUM"})
    (tmp_path / "train.txt").write_text("a dog\nbarks\n")
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a dog\n")
    text = vectors.read_text(vectors.VectorRun(text=f"{tmp_path} genia", universal=True))
    assert text.sentences == [["a", "dog"], ["barks"], ["Cats", "NUM"], ["Cats", "NUM"]]
    assert text.tagged["test"].tags == [["NOUN", "NUM"]]


def test_a_second_classifier_sees_the_neighbours(text, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("experiments.lds_for_text.probe.COMMON", 0)
    config = vectors.VectorRun(model=LDSConfig(dim=3, blocks=3), window=1)
    assert {"pos_test", "window_valid", "window_test"} <= set(vectors.measure(config, text, tmp_path).figures)
    assert "window_test" not in vectors.measure(replace(config, window=0), text, tmp_path).figures


def test_vectors_are_learned_once_for_several_classifiers(text, tmp_path: Path, monkeypatch) -> None:
    config = vectors.VectorRun(model=LDSConfig(dim=3, blocks=3))
    first = vectors.measure(config, text, tmp_path)
    assert first.seconds > 0
    monkeypatch.setitem(vectors.VECTORS, "lds", None)  # cannot learn any more
    again, linear = (vectors.measure(replace(config, hidden=units), text, tmp_path) for units in (25, 0))
    assert again.figures == first.figures
    assert linear.figures["gain_train"] == first.figures["gain_train"]
    assert linear.seconds == first.seconds
    for change in ({"model": LDSConfig(dim=4, blocks=3)}, {"seed": 1}, {"text": "other"}):
        with pytest.raises(TypeError):
            vectors.measure(replace(config, **change), text, tmp_path)


def test_vectors_of_an_unknown_kind(text, tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="not recognised"):
        vectors.measure(vectors.VectorRun(vectors="cbow"), text, tmp_path)


def test_a_system_over_given_vectors_gains_by_memory(text) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(12, 4, generator=generator)
    tokens = torch.from_numpy(markov_text(0, words=12))
    system = DenseSystem.fit(table, tokens, 8)
    found, _ = system.read([tokens[:17], tokens[17:20], tokens[20:60]])
    assert [len(rows) for rows in found] == [17, 3, 40]
    shuffled = DenseSystem.fit(table, tokens[torch.randperm(len(tokens), generator=generator)], 8)
    assert system.read([tokens])[1] > max(0, shuffled.read([tokens])[1])
