"""An HMM tagger has what every tagger has."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpora import hmm
from taggers import CONFIG, fit, tagger, texts
from trellis.config import run_config
from trellis.corpus.tagged import Tagged
from trellis.errors import TrellisError
from trellis.models.files import FILE, load, save_model
from trellis.models.tagger import Tagger
from trellis.options import to_tables
from trellis.tasks.tagging import score_tags, word_counts


def test_the_folder_of_a_run_is_a_tagger(tmp_path: Path) -> None:
    model, sentences = tagger().float(), [["the", "cat"], ["a", "dog", "sees", "pigs"]]
    save_model(tmp_path / FILE, model)
    again = load(tmp_path, Tagger)
    assert again.tag(sentences) == model.tag(sentences)
    assert again.labels == ["D", "N", "V"]
    assert again.word_counts["cat"] == 20
    assert again.units == "tokens"


@pytest.mark.parametrize("added", [False, True])
def test_words_of_untagged_text_alone_are_out_of_vocabulary(added: bool, tmp_path: Path) -> None:
    """However often it was read without a tag, a word that never had one is OOV, before and after saving."""
    more = [["the", "newt", "sees", "the", "newt"]] * 10
    choices = [f"model.untagged_words={int(added)}", "model.backoff=0.1"]
    model, _ = fit(run_config(to_tables(CONFIG), choices), texts(untagged=more))
    save_model(tmp_path / FILE, model)
    data = Tagged([["the", "newt", "sees", "the", "dog"]], [["D", "N", "V", "D", "N"]])
    for found in (model, load(tmp_path, Tagger)):
        assert ("newt" in model.vocab.index) == added
        assert found.word_counts == word_counts(texts()["train"])
        assert score_tags(data, found.tag(data.words), known=found.word_counts).buckets["oov"].gold == 1


def test_a_model_without_tags_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", hmm())
    with pytest.raises(TrellisError, match="a model of the family hmm, not a tagger"):
        load(tmp_path, Tagger)
