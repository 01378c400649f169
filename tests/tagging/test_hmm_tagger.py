"""A POS HMM behind the face of every tagger."""

from __future__ import annotations

from pathlib import Path

import pytest
from trellis.tagging import HMMTagger

from corpora import hmm
from taggers import CONFIG, tagger, texts
from trellis.corpus.tagged import Tagged
from trellis.errors import TrellisError
from trellis.families.hmm_tagger.fit import train_tagger
from trellis.models.files import save_model
from trellis.tasks.tagging import score_tags, word_counts


def test_the_folder_of_a_run_is_a_tagger(tmp_path: Path) -> None:
    model, sentences = tagger().float(), [["the", "cat"], ["a", "dog", "sees", "pigs"]]
    HMMTagger(model).save(tmp_path)
    again = load(tmp_path)
    assert again.tag(sentences) == model.tag(sentences)
    assert again.labels == ["D", "N", "V"]
    assert again.counts["cat"] == 20
    assert again.units == "tokens"


def test_words_of_untagged_text_alone_are_out_of_vocabulary(tmp_path: Path) -> None:
    """However often it was read without a tag, a word that never had one is OOV, before and after saving."""
    more = [["the", "newt", "sees", "the", "newt"]] * 10
    model, _ = train_tagger(CONFIG, texts(untagged=more), "cpu", tmp_path / "training")
    HMMTagger(model).save(tmp_path)
    data = Tagged([["the", "newt", "sees", "the", "dog"]], [["D", "N", "V", "D", "N"]])
    for found in (HMMTagger(model), load(tmp_path)):
        assert "newt" in model.vocab.index
        assert found.counts == word_counts(texts()["train"])
        assert score_tags(data, found.tag(data.words), known=found.counts).buckets["oov"].gold == 1


def test_a_model_without_tags_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", hmm())
    with pytest.raises(TrellisError, match="a model of the family hmm, not a tagger"):
        load(tmp_path)
