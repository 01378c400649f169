"""A POS HMM behind the face of every tagger."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpora import hmm
from taggers import tagger
from trellis.errors import TrellisError
from trellis.models import save_model
from trellis.tagging import HMMTagger, load_tagger


def test_the_folder_of_a_run_is_a_tagger(tmp_path: Path) -> None:
    model, sentences = tagger().float(), [["the", "cat"], ["a", "dog", "sees", "pigs"]]
    HMMTagger(model).save(tmp_path)
    again = load_tagger(tmp_path)
    assert again.tag(sentences) == model.tag(sentences)
    assert again.labels == ["D", "N", "V"]
    assert again.counts["cat"] == 20
    assert again.units == "tokens"


def test_a_model_without_tags_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", hmm())
    with pytest.raises(TrellisError, match="tagger"):
        load_tagger(tmp_path)
