"""The table of results of language models: the n-gram rows, bits per character, and the splits it has."""

from __future__ import annotations

import logging
import math

import pytest

import trellis
from trellis.config import EvalConfig
from trellis.families.language_model import baseline_orders
from trellis.families.ngram.model import NGram

SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sees"] * 25
EXACT = 1e-12


def models(trained: trellis.Trained) -> list[str]:
    return [row["model"] for row in trained.scores.rows]


def test_the_kneser_ney_row_is_that_of_the_model_itself() -> None:
    corpus = trellis.read_corpus(SENTENCES)
    trained = trellis.train(SENTENCES, family="unigram", order="sentences")
    assert models(trained) == ["bigram", "5-gram", "unigram"]
    alone = trellis.train(SENTENCES, family="ngram", batches={"order": "sentences"})
    same = [{key: value for key, value in row.items() if key != "tokens_per_second"} for row in
            (trained.scores.rows[1], alone.scores.rows[-1])]  # fmt: skip
    assert same[0] == same[1]
    assert same[0]["parameters"] == NGram.fit(corpus.vocab, corpus["train"], 5).num_parameters()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ngram": 0}, ["unigram", "bigram"]),
        ({"ngram": 2}, ["unigram", "bigram"]),
        ({"ngram": 3}, ["unigram", "bigram", "3-gram", "hmm + 3-gram"]),
        (
            {"ngram": 50},
            ["unigram", "bigram", "9-gram", "hmm + 9-gram"],
        ),  # the longest sentence, with its beginning and end
        ({"ngram_tokens": 100}, ["unigram", "bigram"]),
    ],
)
def test_the_order_and_the_limit_are_settings(options: dict, expected: list[str]) -> None:
    assert models(trellis.train(SENTENCES, states=2, epochs=1, **options)) == [*expected, "hmm"]


def test_the_mixture_is_that_of_an_evaluation() -> None:
    trained, corpus = trellis.train(SENTENCES, states=2, epochs=1), trellis.read_corpus(SENTENCES)
    ngram = NGram.fit(corpus.vocab, corpus["train"], 5)
    ngram.about = trained.model.about
    row = trained.scores.rows[-2]
    assert (row["model"], row["train"], row["parameters"]) == (
        "hmm + 5-gram",
        None,
        trained.model.num_parameters() + ngram.num_parameters(),
    )
    for split in ("valid", "test"):
        expected = trellis.compare([trained.model, ngram], corpus, split, interpolate=True)[-1]
        assert row[split] == pytest.approx(expected.perplexity, rel=EXACT)
        assert row[split] != trained.scores.rows[-1][split]


def test_a_text_beyond_the_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    corpus = trellis.read_corpus(SENTENCES)
    size = corpus["train"].tokens.size
    with caplog.at_level(logging.INFO):
        assert baseline_orders(corpus, EvalConfig(ngram_tokens=size)) == [1, 2, 5]
        assert not caplog.text
        assert baseline_orders(corpus, EvalConfig(ngram_tokens=size - 1)) == [1, 2]
    assert f"no 5-gram model in the table: the training text has more than {size - 1:,} tokens" in caplog.text


@pytest.mark.parametrize("test", [True, False])
def test_bits_per_character_are_those_of_the_last_split(test: bool) -> None:
    trained, corpus = trellis.train(SENTENCES, family="bigram", test=test), trellis.read_corpus(SENTENCES)
    name = "test" if test else "valid"
    assert trained.scores.headline == name
    assert ("test" in trained.scores.values) == test
    for row in trained.scores.rows:
        split = corpus[name]
        expected = split.tokens.size * math.log2(row[name]) / split.num_characters
        assert row["bits_per_character"] == pytest.approx(expected, rel=EXACT)


def test_the_test_split_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a run without it can see the test split: it is not in the corpus that training gets."""
    corpus = trellis.read_corpus(SENTENCES)
    corpus.splits["test"] = None  # type: ignore[assignment]  # any use of it fails
    monkeypatch.setattr("trellis.corpus.load.corpus_of", lambda data, config: corpus)
    for family in ("hmm", "fhmm", "lds", "ngram", "lstm"):
        small = {"lds": {"dim": 2, "horizon": 2, "blocks": 2}, "lstm": {"dim": 2}}.get(family, {})
        options = {} if family == "ngram" else {"epochs": 1} | ({"states": 2} if family in ("hmm", "fhmm") else {})
        trained = trellis.train(SENTENCES, family=family, eval={"test": False}, device="cpu", **options, **small)
        assert not [name for name in trained.scores.values if "test" in name]
