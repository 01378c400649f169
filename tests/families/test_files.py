"""Saving and loading: the same model comes back, and damaged or foreign files are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import trellis
from corpora import hmm, split, vocabulary
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import TableParams
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.families.ngram.model import NGram
from trellis.models.base import LanguageModel
from trellis.models.files import load, save_model
from trellis.storage import save_tensors

TEXT = "the cat sees a dog"


def models() -> list[LanguageModel]:
    support = torch.tensor([[0, 1], [1, 2]] * 3 + [[0, 2]])
    sparse = HMM(vocabulary(), TableParams(3, 7, support))
    ngrams = [NGram.fit(vocabulary(), split(), order, cross_sentences=order == 3) for order in (1, 2, 3)]
    nets = [FeedForward(vocabulary(), 4, window=2), LSTM(vocabulary(), 4, tied=False).double(), RNN(vocabulary(), 4)]
    return [hmm(), hmm(carry=True), sparse, *ngrams, *(net.eval() for net in nets)]


@pytest.mark.parametrize("model", models(), ids=lambda m: m.name)
def test_a_model_survives_the_file(model: LanguageModel, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model, {"note": "é"})
    again = trellis.load(tmp_path)
    assert type(again) is type(model)
    assert again.log_prob(TEXT) == model.log_prob(TEXT)
    assert again.settings() == model.settings()
    assert again.num_parameters() == model.num_parameters()
    assert load(tmp_path).about == {"note": "é"}


def test_what_is_not_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="There is no model at"):
        load(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"hello")
    with pytest.raises(TrellisError, match=r"model\.safetensors"):
        load(file)
    save_tensors(file, {"x": torch.zeros(1)}, {"format": "other"})
    with pytest.raises(TrellisError, match="is not a Trellis model"):
        load(file)
    save_tensors(file, {"x": torch.zeros(1)}, {"format": "trellis.model", "schema": "99"})
    with pytest.raises(TrellisError, match="from a newer Trellis"):
        load(file)


def test_parts_that_do_not_fit_are_noticed(tmp_path: Path) -> None:
    model = LSTM(vocabulary(), 4)
    model.dim = 5  # what the file will say
    save_model(tmp_path / "model.safetensors", model)
    with pytest.raises(TrellisError, match="its contents are inconsistent"):
        load(tmp_path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", hmm())
    whole = (tmp_path / "model.safetensors").read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(TrellisError, match="cut"):
            load(tmp_path / "cut")


def test_n_grams_that_do_not_add_up(tmp_path: Path) -> None:
    model = NGram.fit(vocabulary(), split(), 3)
    model.backoffs = model.backoffs[1:]
    save_model(tmp_path / "m", model)
    with pytest.raises(TrellisError, match="'backoffs' has the shape"):
        load(tmp_path / "m")


def test_a_family_that_is_not_known(tmp_path: Path) -> None:
    header = {"format": "trellis.model", "schema": "2", "family": "hmmm"}
    save_tensors(tmp_path / "m", {"x": torch.zeros(1)}, header)
    with pytest.raises(TrellisError, match="did you mean 'hmm'"):
        load(tmp_path / "m")
