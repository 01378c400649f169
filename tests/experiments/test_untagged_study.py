"""The study of untagged text: which sentences have tags, how taggers are compared, and how samples are pooled."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments.tagging.untagged_study import (
    ALONE,
    FOUND,
    LEARNERS,
    SAMPLES,
    compare,
    pooled,
    sample,
    settings,
    table,
    unknown,
)
from taggers import texts
from trellis.corpus.tagged import Tagged

TAGGING = Path(__file__).parents[2] / "docs" / "tagging.md"


def test_every_sentence_is_read_once() -> None:
    whole = texts()
    found = [sample(whole, 10, first) for first in range(10)]
    assert all(one.weight == 10 and len(one["train"]) == 6 and len(one.untagged) == 54 for one in found)
    again = [line for one in found for line in one["train"].words]
    assert sorted(again) == sorted(whole["train"].words)
    assert sorted([*found[3]["train"].words, *found[3].untagged]) == sorted(whole["train"].words)
    assert found[3]["test"] is whole["test"]


def test_untagged_text_of_a_sample() -> None:
    more, without = sample(texts(), 10, 0, [["x"]], 5), sample(texts(), 10, 0, [["x"]], 0)
    assert (len(more.untagged), more.untagged[-1], more.weight) == (55, ["x"], 50)
    assert (without.untagged, without.weight) == ([], 1)


def test_learners_differ_only_in_new_words_and_pseudocounts() -> None:
    alone, rest, words = (asdict(settings(LEARNERS[name][0])) for name in (ALONE, "rest", "words"))
    assert (words["model"].pop("untagged_words"), rest["model"].pop("untagged_words")) == (2, 0)
    assert words["train"].pop("pseudocount") < rest["train"].pop("pseudocount")
    for config in (alone, rest, words):
        del config["data"]
    assert words == rest
    alone["model"].pop("untagged_words")
    alone["train"].pop("pseudocount")
    assert alone == rest


def test_taggers_are_compared_on_all_words_and_on_unknown_ones() -> None:
    test = Tagged([["a", "new", "dog"], ["a", "cat"]], [["D", "J", "N"], ["D", "N"]])
    alone, found = [["D", "N", "N"], ["D", "J"]], [["D", "J", "J"], ["D", "N"]]
    assert compare(test, {"a": 5, "dog": 1}, alone, found) == {
        "accuracy": pytest.approx(80.0),
        "accuracy_oov": pytest.approx(100.0),
        "won": 2,
        "lost": 1,
        "won_oov": 2,
        "lost_oov": 0,
    }


def test_words_that_are_not_known() -> None:
    data = Tagged([["a", "new", "dog"], ["a", "cat"]], [["D", "J", "N"], ["D", "N"]])
    found = unknown({"a": 5, "dog": 1}, data, [["x", "y", "x"], ["x", "z"]], [["u", "v", "u"], ["u", "w"]])
    assert found == (Tagged([["new", "cat"]], [["J", "N"]]), [["y", "z"]], [["v", "w"]])


def test_samples_are_pooled() -> None:
    one = {"accuracy": 82.0, "accuracy_oov": 50.0, "lost": 1, "won": 5, "lost_oov": 0, "won_oov": 2}
    other = one | {"accuracy": 84.0, "accuracy_oov": 53.0, "lost": 0, "won": 4}
    found = pooled([one, other])
    assert (found["accuracy"], found["lost"], found["won"]) == (83.0, 1, 9)
    assert found["p"] == pytest.approx(2 * (1 + 10) / 2**10)
    of_oov = pooled([one, other], "_oov")
    assert (of_oov["accuracy"], of_oov["p"]) == (51.5, pytest.approx(2 / 2**4))
    assert pooled([one | {"won": 0, "lost": 0}])["p"] == 1.0


def test_the_page_has_the_table() -> None:
    stored = json.loads(FOUND.read_text(encoding="utf-8"))
    assert {every: len(samples) for every, samples in stored.items()} == {str(n): k for n, k in SAMPLES.items()}
    assert table(stored) in TAGGING.read_text(encoding="utf-8")


@pytest.mark.parametrize("of", ["", "_oov"])
def test_what_the_page_says_of_new_words(of: str) -> None:
    """With them, untagged text helps in every sample."""
    for samples in json.loads(FOUND.read_text(encoding="utf-8")).values():
        results = list(samples.values())
        for name in ("words", "wikitext"):
            assert all(one[name]["accuracy" + of] > one[ALONE]["accuracy" + of] for one in results)
            assert pooled([one[name] for one in results], of)["p"] < 1e-13


def test_what_the_page_says_of_untagged_text_without_new_words() -> None:
    stored = json.loads(FOUND.read_text(encoding="utf-8"))
    tests = [f"{pooled([one['rest'] for one in samples.values()])['p']:.1g}" for samples in stored.values()]
    assert tests == ["0.05", "0.1", "1e-06"]
    every = [one for samples in stored.values() for one in samples.values()]
    assert sum(one["rest"]["accuracy"] < one[ALONE]["accuracy"] for one in every) == 2
