"""The tagger with features: it learns, it is the same after it was saved, and it says what it cannot do."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from corpora import vocabulary
from trellis.config import run_config
from trellis.corpus.tagged import Tagged
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
from trellis.families.crf.tagger import CRFTagger, TaggedCorpus, evaluate, fit, read_state, scale_of, spread, window
from trellis.families.crf.templates import TEMPLATES
from trellis.families.hmm.model import HMM
from trellis.kernels.bags import Bags
from trellis.models.base import Saved
from trellis.models.files import FILE, load, save_model
from trellis.models.tagger import Tagger, a_few
from trellis.storage import CHECKSUM, load_tensors

QUICK = CRFTrainConfig(l2=0.01, iterations=30)
TREE = Tagged(
    [["the", "dog", "sees", "Fido"], ["Fido", "barks"], ["the", "cat", "barks"]],
    [["D", "N", "V", "N"], ["N", "V"], ["D", "N", "V"]],
)
CHUNKS = Tagged(
    [["the", "dog", "sees", "old", "Fido"], ["Fido", "barks"]],
    [["I-NP", "I-NP", "O", "I-NP", "I-NP"], ["I-NP", "O"]],
    [["DT", "NN", "VB", "JJ", "NN"], ["NN", "VB"]],
)


@pytest.fixture(scope="module")
def tree() -> CRFTagger:
    return CRFTagger.train(TREE, CRFTaggerConfig(), QUICK)


def test_it_learns_and_carries_over(tree: CRFTagger) -> None:
    assert tree.tag(TREE.words) == TREE.tags
    assert tree.tag([["the", "dog", "barks"]]) == [["D", "N", "V"]]
    assert (tree.config.template, tree.units, tree.word_counts["the"]) == ("pos", "tokens", 2)


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES"])
def test_spans_in_any_scheme_come_back_as_iob2(scheme: str) -> None:
    tagger = CRFTagger.train(CHUNKS, CRFTaggerConfig(scheme=scheme), QUICK)
    assert tagger.tag(CHUNKS.words, CHUNKS.pos) == [["B-NP", "I-NP", "O", "B-NP", "I-NP"], ["B-NP", "O"]]
    assert (tagger.config.template, tagger.units) == ("chunk", "spans")
    tagger.check(["S-NP", "E-NP", "O"])
    with pytest.raises(TrellisError, match="trained with parts of speech"):
        tagger.tag(CHUNKS.words)


def test_a_saved_tagger_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "paths.txt").write_text("00\tdog\t1\n00\tcat\t1\n01\tFido\t1\n")
    (tmp_path / "vectors.txt").write_text("2 2\ndog 1 2\ncat 1 1\n")
    (tmp_path / "hmm").mkdir()
    save_model(tmp_path / "hmm" / "model.safetensors", HMM.new(vocabulary(), 3))
    specs = [f"brown:{tmp_path / 'paths.txt'}", f"vectors:{tmp_path / 'vectors.txt'}",
             f"hmm:{tmp_path / 'hmm'}", f"hmm-posterior:{tmp_path / 'hmm'}"]  # fmt: skip
    tagger = CRFTagger.train(TREE, CRFTaggerConfig(representations=";".join(specs)), QUICK)
    save_model(tmp_path / "tagger" / FILE, tagger)
    for name in ("paths.txt", "vectors.txt", "hmm/model.safetensors"):
        (tmp_path / name).unlink()
    again = load(tmp_path / "tagger", Tagger)
    assert isinstance(again, CRFTagger)
    assert again.crf.dense.shape[0] == 5 * (2 + 3)
    assert again.scales[0] != 1.0
    assert again.scales[1] == 1.0
    assert replace(again.config, representations="") == replace(tagger.config, representations="")
    assert (again.labels, again.index, again.word_counts) == (tagger.labels, tagger.index, tagger.word_counts)
    unseen = [["the", "cat", "sees", "it"], ["dog"]]
    assert again.tag(unseen) == tagger.tag(unseen)


def test_weights_of_unseen_pairs_are_optional() -> None:
    few, all_pairs = (CRFTagger.train(TREE, CRFTaggerConfig(unseen=unseen), QUICK).crf for unseen in (False, True))
    assert len(all_pairs.attribute) == (len(all_pairs.first) - 1) * len(all_pairs.transition)
    seen = {(name, tag) for words, tags in zip(TREE.words, TREE.tags, strict=True)
            for names, tag in zip(TEMPLATES["pos"](words, None), tags, strict=True) for name in names}  # fmt: skip
    assert len(few.attribute) == len(seen)


def test_a_dense_table_of_weights_is_read(tree: CRFTagger) -> None:
    """As files had it before weights were sparse."""
    every = CRFTagger.train(TREE, CRFTaggerConfig(unseen=True), QUICK)
    tensors = every.tensors()
    old = {name: tensors[name] for name in ("dense", "transition", "names")}
    old["attribute"] = tensors["attribute"].view(-1, len(every.labels))
    again = CRFTagger.restore(Saved(every.vocab, every.settings(), old))
    assert again.tag(TREE.words) == TREE.tags
    assert again.crf.attribute.equal(every.crf.attribute)


def test_a_checkpoint_without_checksum_is_refused(tree: CRFTagger, tmp_path: Path) -> None:
    save_model(tmp_path / FILE, tree)
    with safe_open(tmp_path / FILE, "pt") as file:
        metadata = file.metadata() | {"about": '{"learner": {}}'}
    save_file(load_tensors(tmp_path / FILE), tmp_path / "none", {k: v for k, v in metadata.items() if k != CHECKSUM})
    with pytest.raises(TrellisError, match="no checksum"):
        read_state(tmp_path / "none")


def test_rare_attributes_are_dropped() -> None:
    tagger = CRFTagger.train(TREE, CRFTaggerConfig(min_count=2), QUICK)
    counts = Counter(name for words in TREE.words for names in TEMPLATES["pos"](words, None) for name in names)
    often = {name for name, count in counts.items() if count >= 2}
    assert set(tagger.index) == often
    assert [counts[name] for name in tagger.index] == sorted((counts[name] for name in often), reverse=True)
    features = tagger.features(tagger.attributes(TREE.words, None, []), TREE.words, [])
    names = list(tagger.index)
    first = [name for name in TEMPLATES["pos"](TREE.words[0], None)[0] if name in often]
    assert [names[i] for i in features.ids[: features.offsets[1]]] == first


def test_parts_of_speech_of_another_tag_set_are_refused() -> None:
    tagger = CRFTagger.train(CHUNKS, CRFTaggerConfig(), QUICK)
    with pytest.raises(TrellisError, match="none of the parts of speech of the data"):
        tagger.tag(CHUNKS.words, [[tag.lower() for tag in row] for row in CHUNKS.pos or []])
    with pytest.raises(TrellisError, match="but the data has none"):
        tagger.tag(CHUNKS.words)


def test_several_processes_do_not_train_a_crf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "size", 2)
    job = SimpleNamespace(config=run_config({"model": {"family": "crf"}}), folder=None)
    with pytest.raises(TrellisError, match="process"):
        fit(job)  # type: ignore[arg-type]


def test_more_labels_than_attributes() -> None:
    tagger = CRFTagger.train(TREE, CRFTaggerConfig(min_count=9), QUICK)
    assert len(tagger.index) < len(tagger.labels)
    assert tuple(tagger.tag([["dog", "barks"]])[0]) in {pair for tags in TREE.tags for pair in pairwise(tags)}


def test_representations_stand_in_a_window() -> None:
    assert spread("0", [["a", "b"], []])[0] == ["0[-2]<s>", "0[-1]<s>", "0[0]a", "0[0]b", "0[2]</s>"]
    assert np.array_equal(window(np.array([[1.0], [2.0]])), [[0, 0, 1, 2, 0], [0, 1, 2, 0, 0]])


def test_vectors_have_the_scale_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("2 1\ndog 3\nthe 4\n")
    config = CRFTaggerConfig(scale=0.5, representations=f"vectors:{tmp_path / 'vectors.txt'}")
    tagger = CRFTagger.train(Tagged([["dog", "the"]], [["N", "D"]]), config, QUICK)
    assert tagger.scales == [pytest.approx(0.5 / np.sqrt(12.5), abs=1e-6)]


def test_what_cannot_be_tagged_is_told(tree: CRFTagger) -> None:
    assert tree.tag([[], ["a"], []]) == [[], *tree.tag([["a"]]), []]
    with pytest.raises(TrellisError, match="Sentence 2 is empty"):
        CRFTagger.train(Tagged([["a"], []], [["X"], []]), CRFTaggerConfig())
    with pytest.raises(TrellisError, match="parts of speech do not match"):
        tree.tag([["a"]], [["X", "Y"]])
    with pytest.raises(TrellisError, match="tags do not match the words"):
        CRFTagger.train(Tagged([["a"]], [["X", "Y"]]), CRFTaggerConfig())
    with pytest.raises(TrellisError, match=r"model\.template is 'poss', which is not recognised; did you mean"):
        CRFTagger.train(TREE, CRFTaggerConfig(template="poss"))


def test_a_tagger_for_another_task_is_refused(tree: CRFTagger, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TrellisError, match="none of the tags of the data"):
        tree.check(["B-NP", "O"])
    tree.check(["D", "N"])
    assert not caplog.text
    tree.check(["D", "X"])
    assert "no tags X: they count as errors" in caplog.text


def test_what_is_no_tagger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="There is no model"):
        load(tmp_path, Tagger)
    save_model(tmp_path / "model.safetensors", HMM.new(vocabulary(), 2))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(TrellisError, match="a model of the family hmm, not a tagger"):
            load(path, Tagger)


def test_scores_of_held_out_text_alone(tree: CRFTagger) -> None:
    wrong = Tagged([["the", "dog"], ["Fido", "barks"]], [["D", "V"], ["N", "V"]])
    run = run_config({}, ["model.family=crf"])
    found = evaluate(tree, TaggedCorpus({"train": TREE, "test": wrong}, ""), run)
    assert found.rows == [{"split": "test", "accuracy, %": 75.0, "F1, %": 75.0}]
    assert found.values["test_accuracy"] == found.values["test_f1"] == 75.0
    assert [row["split"] for row in evaluate(tree, TaggedCorpus({"train": TREE}, ""), run).rows] == ["train"]


def test_vectors_are_scaled_to_the_wanted_size() -> None:
    part = [np.array([[3.0, 4.0]]), np.array([[0.0, 0.0], [6.0, 8.0]])]
    rms = np.sqrt((9 + 16 + 36 + 64) / 6)
    assert scale_of(part, 0.5) == pytest.approx(0.5 / rms)
    assert scale_of([np.zeros((2, 2))], 0.5) == 1.0


def test_the_features_of_vectors_are_scaled(tree: CRFTagger) -> None:
    tagger = copy(tree)
    tagger.scales = [0.5, 4.0]
    bags = Bags(torch.zeros(0, dtype=torch.int32), torch.zeros(3, dtype=torch.int64))
    encoded = [[np.ones((2, 1), np.float32)], [np.full((2, 2), 3.0, np.float32)]]
    dense = tagger.beside_vectors(bags, [["a", "b"]], encoded).dense
    width = dense.shape[1] // 3
    assert set(dense[:, :width].unique().tolist()) <= {0.0, 0.5}
    assert set(dense[:, width:].unique().tolist()) <= {0.0, 12.0}
    assert dense.max() == 12.0
    assert dense[:, :width].max() == 0.5


def test_the_first_few_names() -> None:
    assert a_few("cab", most=3) == "a, b, c"
    assert a_few("cabd", most=3) == "a, b, c, ..."
