"""Representations of words: each is what its model says of the sentence alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from corpora import vocabulary
from trellis.corpus import Split
from trellis.errors import TrellisError
from trellis.families.crf import encoders
from trellis.families.crf.encoders import ENCODERS, SWEEPS, Encoder, split_spec
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM
from trellis.families.lds.learning import count_text, fit_lds
from trellis.families.lds.model import LDS
from trellis.families.neural.feedforward import FeedForward
from trellis.models import text
from trellis.models.base import PersistedModel
from trellis.models.files import save_model

CLOSE = 1e-5
SENTENCES = [["the", "cat"], ["unheard", "dog", "the", "cat", "sat"], ["sat"]]


def saved(folder: Path, model: PersistedModel, kind: str) -> Encoder:
    save_model(folder / "model.safetensors", model)
    kind, file = split_spec(f"{kind}:{folder}")
    return ENCODERS[kind](file)


def alone(model: HMM | FHMM | LDS, sentence: list[str]) -> torch.Tensor:
    """One sentence with its end: [1, T]."""
    return torch.from_numpy(np.append(model.vocab.encode(sentence), model.vocab.eos))[None]


def test_brown_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "paths.txt"
    path.write_text("0110101\tcat\t3\n10\tthe\t9\n11\tN\t4\n")
    found = ENCODERS["brown"](path).encode([["cat", "the", "dog", "1996", "The"]])
    assert found == [[["4:0110", "6:011010", "0110101"], ["10"], [], ["11"], ["10"]]]
    path.write_text(path.read_text() + "0111\t<unk>\t2\n")
    assert ENCODERS["brown"](path).encode([["dog"]]) == [[["0111"]]]


def test_word_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\ncat 1 2 3\nthe 0.5 0 -1\n")
    (found,) = ENCODERS["vectors"](path).encode([["cat", "dog", "THE"]])
    assert np.array_equal(found, np.array([[1, 2, 3], [0, 0, 0], [0.5, 0, -1]], np.float32))
    path.write_text("3 3\ncat 1 2 3\n")
    with pytest.raises(TrellisError, match="contains 1 vectors, but its first line announces 3"):
        ENCODERS["vectors"](path)


@pytest.mark.parametrize("kind", ["hmm", "hmm-posterior"])
def test_hmm(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TOKENS", 8)  # several batches
    model = HMM.new(vocabulary(), 5, seed=3)
    found = saved(tmp_path, model, kind).encode(SENTENCES)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        tokens = alone(model, sentence)
        if kind == "hmm":
            assert ours == [[str(z)] for z in model.best_path(tokens)[0][0, :-1].tolist()]
        else:
            assert np.abs(np.asarray(ours) - model.smooth(tokens).probs[0, :-1].numpy()).max() < CLOSE


@pytest.mark.parametrize("kind", ["fhmm", "fhmm-posterior"])
def test_fhmm(tmp_path: Path, kind: str) -> None:
    model = FHMM.new(vocabulary(), (3, 2), seed=1)
    found = saved(tmp_path, model, kind).encode(SENTENCES)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        tokens = alone(model, sentence)
        if kind == "fhmm":
            path = model.best_path(tokens, sweeps=SWEEPS)[0][0, :-1].tolist()
            assert ours == [[f"{m}:{z}" for m, z in enumerate(states)] for states in path]
        else:
            wanted = model.smooth(tokens, sweeps=SWEEPS).probs[0, :-1].numpy()
            assert np.abs(np.asarray(ours) - wanted).max() < CLOSE


def test_embeddings_of_a_language_model(tmp_path: Path) -> None:
    model = FeedForward(vocabulary(), 4, window=3, hidden=6)
    (found, *_) = saved(tmp_path, model, "feedforward").encode(SENTENCES)
    wanted = model.embedding.detach()[torch.from_numpy(model.vocab.encode(SENTENCES[0]))]
    assert np.array_equal(np.asarray(found), wanted.numpy())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lambda folder: "brown", "has no path"),
        (lambda folder: f"browns:{folder}", "did you mean 'brown'"),
        (lambda folder: f"hmm:{folder / 'nowhere'}", "There is no model"),
    ],
)
def test_what_is_no_representation(tmp_path: Path, spec: Callable[[Path], str], message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        split_spec(spec(tmp_path))


def test_a_model_of_another_family(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="family hmm, not a model of the family lds"):
        saved(tmp_path, HMM.new(vocabulary(), 2), "lds")


def test_lds_vectors_are_those_of_the_sentence_alone(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, len(vocabulary()), 3000)
    split = Split(ids.astype(np.int32), np.array([0, len(ids)]), np.array([0, len(ids)]))
    model = fit_lds(
        vocabulary(), count_text(vocabulary(), split, 3, 7), 2, 2, blocks=3, pseudocounts=1.0, noise_prior=2.0
    )
    found = (saved(tmp_path, model, kind).encode(SENTENCES) for kind in ("lds", "lds-centred"))
    for sentence, ours, centred in zip(SENTENCES, *found, strict=True):
        wanted = model.unit(model.smooth(alone(model, sentence)))[0, :-1].numpy()
        assert np.abs(np.asarray(ours) - wanted).max() < CLOSE
        assert np.abs(np.asarray(centred) - (wanted - wanted.mean(0))).max() < CLOSE


def test_all_brown_prefixes_and_forms_of_a_word(tmp_path: Path) -> None:
    long = "01" * 11
    path = tmp_path / "paths.txt"
    path.write_text(f"{long}\tcat\t3\n10\til-N\t9\n11\tIL-N\t4\n00\tmany\t2\n")
    found = ENCODERS["brown"](path).encode([["cat", "IL-2", "Il-2", "MANY"]])
    assert found == [[["4:0101", "6:010101", "10:0101010101", f"20:{long[:20]}", long], ["11"], ["10"], ["00"]]]


@pytest.mark.parametrize("numbers", ["x", "nan", "1 2", ""])
def test_vectors_that_are_none(numbers: str, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text(f"1 1\nword {numbers}\n")
    with pytest.raises(TrellisError, match="line 2: expected a word and 1 numbers"):
        ENCODERS["vectors"](tmp_path / "vectors.txt")


def test_the_size_of_vectors_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "LONGEST", 2)
    (tmp_path / "two.txt").write_text("1 2\na 1 2\n")
    assert ENCODERS["vectors"](tmp_path / "two.txt", "cpu").encode([["a"]])[0].tolist() == [[1.0, 2.0]]
    (tmp_path / "three.txt").write_text("1 3\na 1 2 3\n")
    with pytest.raises(TrellisError, match="line 1: expected the number of words"):
        ENCODERS["vectors"](tmp_path / "three.txt", "cpu")
