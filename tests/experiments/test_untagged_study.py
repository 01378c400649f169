"""The study of untagged text: which sentences have tags, and how samples are pooled."""

from __future__ import annotations

import json

import pytest

from experiments.tagging.untagged_study import FOUND, pooled, sample, unknown
from taggers import texts
from trellis.corpus.tagged import Tagged


def test_every_sentence_is_read_once() -> None:
    whole = texts()
    found = [sample(whole, 10, first) for first in range(10)]
    assert all(one.weight == 10 and len(one["train"]) == 6 and len(one.untagged) == 54 for one in found)
    again = [line for one in found for line in one["train"].words]
    assert sorted(again) == sorted(whole["train"].words)
    assert sorted([*found[3]["train"].words, *found[3].untagged]) == sorted(whole["train"].words)
    assert found[3]["test"] is whole["test"]


def test_words_that_are_not_known() -> None:
    data = Tagged([["a", "new", "dog"], ["a", "cat"]], [["D", "J", "N"], ["D", "N"]])
    found = unknown({"a": 5, "dog": 1}, data, [["x", "y", "x"], ["x", "z"]], [["u", "v", "u"], ["u", "w"]])
    assert found == (Tagged([["new", "cat"]], [["J", "N"]]), [["y", "z"]], [["v", "w"]])


def test_samples_are_pooled() -> None:
    one = {"alone": 80.0, "both": 82.0, "alone_oov": 50.0, "both_oov": 50.0, "only_alone": 1, "only_both": 5}
    other = one | {"both": 84.0, "only_alone": 0, "only_both": 4}
    found = pooled([one, other])
    assert (found["both"], found["only_alone"], found["only_both"]) == (83.0, 1, 9)
    assert found["p"] == pytest.approx(2 * (1 + 10) / 2**10)
    of_oov = [sample | {"only_alone_oov": 0, "only_both_oov": 2} for sample in (one, other)]
    assert pooled(of_oov, "_oov")["p"] == pytest.approx(2 / 2**4)


def test_what_the_page_says_was_found() -> None:
    stored = json.loads(FOUND.read_text(encoding="utf-8"))
    samples = list(stored["100"].values())
    found = pooled(samples)
    assert all(one["both"] > one["alone"] for one in samples)
    assert (f"{found['alone']:.1f}", f"{found['both']:.1f}") == ("81.6", "82.0")
    assert (found["only_both"], found["only_alone"], len(samples)) == (1877, 1591, 3)
    assert found["p"] < 1e-5
    tenth = list(stored["10"].values())
    assert f"{pooled(tenth)['p']:.2f}" == "0.25"
    assert pooled(tenth, "_oov")["p"] < 1e-6
