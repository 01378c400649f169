"""A teacher's samples: their distribution, their vocabulary, the cache, and a student that learns from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from corpora import WORDS, hmm, split, vocabulary
from trellis.config import RunConfig, run_config
from trellis.corpus import Vocabulary
from trellis.errors import TrellisError
from trellis.families.ngram.model import NGram
from trellis.models.files import save_model
from trellis.tasks.compare import compare
from trellis.training import teacher
from trellis.training.run import train
from trellis.training.teacher import as_split, sample_text, with_samples

LIKELY = 1e-3  # p-value below which samples are taken not to follow the distribution
LONGEST = 12


def bigram(seed: int = 0) -> NGram:
    return NGram.fit(vocabulary(), split(400, seed), 2)


@pytest.mark.parametrize("model", [bigram(), hmm(carry=True)], ids=["bigram", "hmm"])
def test_samples_follow_the_teacher(model) -> None:
    tokens = sample_text(model, model.vocab, 20_000, LONGEST, 3)
    sentences = [tokens[a:b] for a, b in pairwise(as_split(tokens, 0).sentences)]
    assert tokens.size >= 20_000
    assert all(row[-1] == 0 and 0 not in row[:-1] and len(row) <= LONGEST for row in sentences)
    state = model.sentence_start(1)
    checked = {(): [row[0] for row in sentences], (1,): [row[1] for row in sentences if row[0] == 1 and len(row) > 1]}
    for past, following in checked.items():
        after = model.score(torch.tensor([past]), state)[1] if past else state
        expected = model.forecast(after)[0].exp().double().numpy()
        counts = np.bincount(following, minlength=len(WORDS))
        assert chisquare(counts, counts.sum() * expected / expected.sum()).pvalue > LIKELY


def test_sentences_that_do_not_end_are_cut() -> None:
    tokens = sample_text(bigram(), vocabulary(), 5000, 3, 0)
    lengths = np.diff(as_split(tokens, 0).sentences)
    assert lengths.max() == 3
    assert (lengths == 3).mean() > 0.3


def test_samples_are_encoded_with_the_vocabulary_of_the_student() -> None:
    order = [0, 5, 3, 1, 6, 2, 4]
    other = Vocabulary([WORDS[i] for i in order], [1] * len(WORDS))
    own, others = (sample_text(bigram(), vocab, 500, LONGEST, 0) for vocab in (vocabulary(), other))
    assert [WORDS[i] for i in own] == other.decode(others.tolist())


def test_seeds() -> None:
    one, same, another = (sample_text(bigram(), vocabulary(), 500, LONGEST, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one[:100], another[:100])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of few sentences, and a teacher that has seen more."""
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    text = split(60, seed=1)
    lines = [" ".join(WORDS[i] for i in text.tokens[a : b - 1]) for a, b in pairwise(text.sentences)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    save_model(tmp_path / "teacher", bigram())
    return tmp_path


def config(folder: Path, *sets: str) -> RunConfig:
    tables = {
        "data": {"source": str(folder / "text.txt"), "min_count": 1, "valid_fraction": 0.2, "test_fraction": 0.2},
        "model": {"states": 4},
        "train": {"epochs": 2, "teacher": str(folder / "teacher"), "teacher_tokens": 2000},
        "eval": {"ngram": 0},
        "batches": {"lanes": 4, "window": 8},
    }
    return run_config(tables, sets)


def test_the_text_comes_first_and_samples_are_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = split(20)
    run = config(folder).ordered()
    found = with_samples(text, vocabulary(), run, "cpu")
    np.testing.assert_array_equal(found.tokens[: text.tokens.size], text.tokens)
    added = found.tokens[text.tokens.size :]
    longest = int(np.diff(text.sentences).max())
    np.testing.assert_array_equal(added, sample_text(bigram(), vocabulary(), 2000, longest, 0))
    assert found.sentences[-1] == found.documents[-1] == found.tokens.size
    monkeypatch.setattr(teacher, "sample_text", None)  # not called again
    np.testing.assert_array_equal(with_samples(text, vocabulary(), run, "cpu").tokens, found.tokens)
    alone = replace(run, train=replace(run.train, teacher=""))
    assert with_samples(text, vocabulary(), alone, "cpu") is text


def test_a_student_reads_the_samples_and_names_its_teacher(folder: Path) -> None:
    taught = train(config(folder), folder / "taught")
    alone = train(config(folder, "train.teacher="), folder / "alone")
    assert taught.training["tokens"] > alone.training["tokens"] + 2 * 2000
    assert taught.scores.rows[-1]["model"] == "hmm taught by bigram"
    assert alone.scores.rows[-1]["model"] == "hmm"
    assert taught.model.about["teacher"] == {"model": str(folder / "teacher"), "family": "bigram", "tokens": 2000}
    rows = compare([folder / "taught", folder / "alone"], ngram=3)
    assert [row.family for row in rows] == ["hmm taught by bigram", "hmm", "3-gram"]
    with pytest.raises(TrellisError, match=r"was trained with train\.teacher ="):
        train(config(folder, "train.teacher="), folder / "taught", resume=True)


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["train.teacher=nowhere"], "There is no model at nowhere"),
        (["data.max_size=4"], "The teacher and the text differ in vocabulary"),
        (["train.teacher_tokens=0"], "teacher_tokens is 0"),
    ],
)
def test_teachers_that_cannot_teach(sets: list[str], sentence: str, folder: Path) -> None:
    with pytest.raises(TrellisError, match=sentence):
        train(config(folder, *sets))


def test_a_family_that_does_not_learn_from_samples(folder: Path) -> None:
    with pytest.raises(TrellisError, match="the family rnn does not learn from samples"):
        train(config(folder, "model.family=rnn"))
