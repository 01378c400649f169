"""The grammar as a model: training, files, queries, trees and the command line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import trellis
from running import run
from trellis import devices
from trellis.config import load_config, with_settings
from trellis.corpus.splits import Split
from trellis.errors import TrellisError
from trellis.families.pcfg.config import choose
from trellis.families.pcfg.inside import log_likelihoods
from trellis.families.pcfg.model import build
from trellis.families.pcfg.parameters import Kept
from trellis.families.pcfg.parse import Tree
from trellis.families.pcfg.queries import expected_counts
from trellis.families.pcfg.trees import Node
from trellis.models.files import FILE
from trellis.parts import Prior
from trellis.storage import load_tensors, read_metadata, save_tensors
from trellis.testing.families import SENTENCES

SMALL: dict[str, Any] = {"nonterminals": 3, "preterminals": 4, "epochs": 2, "tokenizer": "whitespace", "device": "cpu"}
WORDS = ["the cat sees the dog", "a dog runs", "cat"]
CLOSE = 1e-4  # of log-probabilities in float32


KINDS: dict[str, dict[str, Any]] = {
    "simple": {"dim": 8},
    "rank": {"rank": 2, "params": "table"},
    "brown": {"dim": 8, "emission": "brown", "classes": 3, "word_params": "table"},
    "brown-net": {"dim": 8, "rank": 2, "emission": "brown", "classes": 3},
    "brown-table": {"params": "table", "emission": "brown", "classes": 2, "class_sizes": "equal"},
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return trellis.train(SENTENCES, family="pcfg", **SMALL, **KINDS[request.param]).model


@torch.no_grad()
def test_scores_are_the_same_by_sentence_and_word_by_word(model: Any) -> None:
    """Whole sentences are scored by the inside pass; a stream of them, word by word."""
    texts = [*WORDS, "", "dog dog dog dog dog dog dog"]
    rows = model.token_log_probs(texts)
    assert [len(row) for row in rows] == [len(text.split()) + 1 for text in texts]
    ids = [torch.tensor([*model.vocab.encode(text.split()), model.vocab.eos]) for text in texts]
    stream = torch.cat(ids)[None]
    found, state = model.score(stream, model.start(1))
    np.testing.assert_allclose(found[0], np.concatenate(rows), rtol=CLOSE, atol=CLOSE)
    assert not bool(state.lengths.any())


def test_predictions_are_ratios_of_sentences_that_begin_so(model: Any) -> None:
    ranked = dict(model.predict("the cat", n=len(model.vocab)))
    with_end = np.exp(model.log_prob("the cat"))
    begun = np.exp(model.token_log_probs("the cat")[:2].sum())
    assert ranked["<eos>"] == pytest.approx(with_end / begun, rel=CLOSE)
    assert sum(ranked.values()) == pytest.approx(1, abs=CLOSE)


@pytest.mark.parametrize("method", ["mbr", "viterbi", "sample"])
def test_trees(method: str, model: Any) -> None:
    trees = model.parse([*WORDS, ""], method)
    assert [tree.words for tree in trees] == [text.split() for text in [*WORDS, ""]]
    for tree, text in zip(trees, WORDS, strict=False):
        words = len(text.split())
        assert len(tree.brackets()) == words - 1
        assert len(tree.preterminals()) == words
        assert tree.log_prob <= float(model.log_prob(text)) + CLOSE
        assert str(tree).count("(") == str(tree).count(")") == 2 * words - 1
        assert str(model.parse(text, method)) == str(tree)
        assert " ".join(piece.strip("()") for piece in str(tree).split() if piece.endswith(")")) == text
    assert str(trees[-1]) == "()"
    best = model.parse(WORDS[0], "viterbi").log_prob
    assert max(model.parse(WORDS[0], "sample", seed).log_prob for seed in range(20)) <= best + 1.0


def test_the_viterbi_path_has_the_preterminals_of_the_tree(model: Any) -> None:
    path = model.viterbi("the cat runs")
    tree = model.parse("the cat runs", "viterbi")
    np.testing.assert_array_equal(path.states, tree.preterminals())
    assert path.log_prob == tree.log_prob
    assert [len(one.states) for one in model.viterbi(["a cat", "dog"])] == [2, 1]


@pytest.mark.parametrize("complete", [True, False])
def test_posteriors_and_gaps(complete: bool, model: Any) -> None:
    together = model.posterior(WORDS, complete)
    for text, rows in zip(WORDS, together, strict=True):
        np.testing.assert_allclose(rows.sum(1), 1, atol=CLOSE)
        np.testing.assert_allclose(model.posterior(text, complete), rows, atol=CLOSE)
    found = model.infill(["the ___ sees ___", "___"], n=3, samples=4, complete=complete)
    assert [len(one.gaps) for one in found] == [2, 1]
    assert [one.proved for one in found] == [False, True]
    assert all(len(sample.split()) == 4 and sample.startswith("the ") for sample in found[0].samples)
    if complete:
        best = found[1].best
        assert found[1].log_prob == pytest.approx(float(model.log_prob(best)), abs=CLOSE)
        every = [word for word in model.vocab.words if word != "<eos>"]
        assert model.log_prob(every).max() == pytest.approx(found[1].log_prob, abs=CLOSE)


def test_samples_have_the_lengths_of_the_grammar(model: Any) -> None:
    lengths = Counter(len(text.split()) for text in model.sample(400, max_tokens=12, seed=1))
    one = sum(float(np.exp(model.log_prob(word))) for word in model.vocab.words if word != "<eos>")
    assert lengths[1] / 400 == pytest.approx(one, abs=0.1)


@torch.no_grad()
def test_em_never_lowers_the_likelihood() -> None:
    model = trellis.train(SENTENCES, family="pcfg", **SMALL | {"epochs": 1}, rank=2, params="table").model
    model = model.double()
    rows = [model.encode_line(text)[0] for text in sorted(set(SENTENCES))]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    before = -np.inf
    for _ in range(15):
        after = float(log_likelihoods(model.grammar(), tokens, lengths).sum())
        assert after >= before - 1e-9
        before = after
        model.params.maximise(expected_counts(model.grammar(), tokens, lengths), Prior.same(0.0))
    assert float(model.grammar().finite.total) == pytest.approx(1, abs=1e-6)


def test_every_preterminal_emits_words_other_than_the_end(model: Any) -> None:
    table = model.grammar().emission.dense().exp()
    torch.testing.assert_close(table.sum(0), torch.ones(4))
    assert not bool(table[model.vocab.eos].any())
    if (partition := model.params.partition) is not None:
        owners = (table > 0).float() @ torch.nn.functional.one_hot(partition.state_class()).float()
        assert bool(((owners > 0).sum(1) == (torch.arange(len(table)) != model.vocab.eos)).all())


def test_training_with_dropout_improves() -> None:
    dropout = {"dropout_rate": 0.5, "preterminal_dropout": 0.25}
    trained = trellis.train(SENTENCES, family="pcfg", **SMALL | {"epochs": 8}, dim=8, **dropout)
    values = [line["valid_ppl"] for line in trained.history if "valid_ppl" in line]
    assert values[-1] < values[0]


@pytest.mark.parametrize("options", [{"dim": 8}, {"params": "table"}, {"dim": 8, "word_params": "table"}])
@pytest.mark.parametrize("rank", [0, 2])
@torch.no_grad()
def test_dropout_normalises_over_the_symbols_kept(rank: int, options: dict[str, Any]) -> None:
    corpus = trellis.read_corpus(SENTENCES, tokenizer="whitespace")
    params = build(
        with_settings("pcfg", {"nonterminals": 3, "preterminals": 4, "rank": rank, **options}), corpus
    ).params
    some, words = torch.tensor([0, 2]), torch.tensor([1, 2])
    symbols = torch.cat([some, 3 + words, torch.tensor([7])])
    whole, grammar = params.logits(), params.grammar(Kept(some, words))
    columns = torch.arange(2) if rank else some
    for found, logits in ((grammar.lefts, whole.lefts), (grammar.rights, whole.rights)):
        torch.testing.assert_close(found, logits[symbols[:-1]][:, columns].softmax(0))
    torch.testing.assert_close(grammar.root, whole.root[symbols].softmax(0))
    torch.testing.assert_close(grammar.emission.table, params.grammar().emission.table[:, words])
    if whole.ranks is not None:
        torch.testing.assert_close(grammar.ranks, whole.ranks[some].softmax(-1))
    assert grammar.nonterminals == 2


def test_options_of_gradient_training_that_are_not_set() -> None:
    run = with_settings("pcfg", {"lr": 0.1})
    chosen = choose(run, None, "cpu")
    assert (chosen.train.lr, chosen.train.beta1, chosen.batches.tokens) == (0.1, 0.75, 512)
    tables = with_settings("pcfg", {"params": "table"})
    assert choose(tables, None, "cpu") == tables


def test_the_printed_options_are_those_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "pcfg") == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "run.toml") == choose(with_settings("pcfg", {}), None, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_of_memory_counts_the_parameters(kind: str) -> None:
    run = with_settings("pcfg", {"nonterminals": 30, "preterminals": 60, **KINDS[kind], "dim": 64})
    corpus = trellis.read_corpus(SENTENCES, tokenizer="whitespace")
    parameters = sum(one.numel() for one in build(run, corpus).parameters())
    assert 0.9 * parameters < run.model.num_values(len(corpus.vocab)) < 3 * parameters


def test_files_that_do_not_fit_are_refused(model: Any, tmp_path: Path) -> None:
    model.save(tmp_path)
    loaded = trellis.load(tmp_path)
    assert loaded.log_prob(WORDS[0]) == model.log_prob(WORDS[0])
    tensors, header = load_tensors(tmp_path / FILE), read_metadata(tmp_path / FILE)
    for change in ({"nonterminals": 10**6}, {"preterminals": 0}, {"rank": 7}, {"params": "none"}):
        settings = json.dumps(json.loads(header["settings"]) | change)
        save_tensors(tmp_path / FILE, tensors, header | {"settings": settings})
        with pytest.raises(TrellisError):
            trellis.load(tmp_path)


def test_what_a_grammar_refuses(model: Any) -> None:
    with pytest.raises(TrellisError, match="whole sentences"):
        trellis.train(SENTENCES, family="pcfg", order="streams", **SMALL)
    with pytest.raises(TrellisError, match="only 4 preterminals"):
        trellis.train(SENTENCES, family="pcfg", emission="brown", **SMALL)
    with pytest.raises(TrellisError, match=r"classes is 90: there are only \d+ words"):
        trellis.train(SENTENCES, family="pcfg", emission="brown", classes=90, **SMALL | {"preterminals": 90})
    with pytest.raises(TrellisError, match="without preterminals"):
        trellis.train(SENTENCES, family="pcfg", emission="brown", classes=2, preterminal_dropout=0.5, **SMALL)
    for options in ({"params": "table", "dropout_rate": 0.5}, {"params": "table", "preterminal_dropout": 0.5}, {}):
        with pytest.raises(TrellisError, match='"table" without dropout'):
            with_settings("pcfg", {"learner": "em", **options})
    with pytest.raises(TrellisError, match="The method"):
        model.parse("the cat", "best")
    with pytest.raises(TrellisError, match="may continue"):
        model.viterbi("the cat", complete=False)
    with pytest.raises(TrellisError, match="without gaps"):
        model.score(torch.tensor([[-1]]), model.start(1))
    with pytest.raises(TrellisError, match=r"\.svg"):
        model.parse("the cat").save("tree.png")


@pytest.mark.parametrize("method", ["mbr", "viterbi", "sample"])
def test_impossible_sentences_have_no_trees(method: str) -> None:
    impossible = trellis.train(SENTENCES, family="pcfg", **SMALL, params="table").model
    with torch.no_grad():
        impossible.params.word_logits[impossible.vocab.encode(["cat"])] = -torch.inf
        impossible.params.root_logits[-1] = -torch.inf
    assert [str(tree).count("(") for tree in impossible.parse(["dog", "a dog", ""], method)] == [1, 3, 1]
    for sentence in ("cat", "a cat"):
        with pytest.raises(TrellisError, match=f"^The sentence '{sentence}' has probability zero"):
            impossible.parse(["a dog", sentence], method)


@pytest.mark.parametrize("method", ["mbr", "viterbi", "sample"])
def test_charts_that_do_not_fit_in_memory_are_refused(method: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "total_memory", lambda device="cpu": 3 * 10**5)
    with pytest.raises(TrellisError, match=r"^A chart of 1 sentences of 200 words needs"):
        model.parse("dog " * 200, method)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_sentence_that_is_too_long_is_refused_before_training(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = trellis.read_corpus(SENTENCES, tokenizer="whitespace")
    tokens = np.append(np.ones(200, np.int64), corpus.vocab.eos)
    offsets = np.array([0, len(tokens)])
    corpus = replace(corpus, splits={**corpus.splits, split: Split(tokens, offsets, offsets)})
    config = with_settings("pcfg", SMALL)
    monkeypatch.setattr(devices, "total_memory", lambda device="cpu": 6 * 4 * 3 * 20100)
    build(config, corpus)
    monkeypatch.setattr(devices, "total_memory", lambda device="cpu": 6 * 4 * 3 * 20100 - 1)
    with pytest.raises(TrellisError, match=r"^The longest sentence, of 200 words, needs"):
        build(config, corpus)


def test_a_prefix_that_does_not_fit_in_memory_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "total_memory", lambda device="cpu": 10**4)
    with pytest.raises(TrellisError, match=r"^A table of the spans of 1 sentences of \d+ words needs"):
        model.predict("dog " * 40)


def test_brackets_in_words() -> None:
    tree = Tree(["(", "a)"], Node(0, 2, 0, (Node(0, 1, 1), Node(1, 2, 3))), 1, 0.0)
    assert str(tree) == "(N0 (P0 -LRB-) (P2 a-RRB-))"


def test_spaces_and_line_breaks_in_words() -> None:
    tree = Tree([" ", "a\n"], Node(0, 2, 0, (Node(0, 1, 1), Node(1, 2, 3))), 1, 0.0)
    assert str(tree).split() == ["(N0", "(P0", "␣)", "(P2", "a⏎))"]


def test_the_command_parse(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.save(tmp_path / "run")
    assert run("parse", tmp_path / "run", *WORDS) == 0
    assert capsys.readouterr().out.splitlines() == [str(tree) for tree in model.parse(WORDS)]
    assert run("parse", tmp_path / "run", WORDS[0], "--json", "--method", "viterbi") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["tree"] == str(model.parse(WORDS[0], "viterbi"))
    assert {(one["start"], one["stop"]) for one in row["constituents"]} >= {(0, 5), (0, 1)}
    picture = tmp_path / "tree.svg"
    assert run("parse", tmp_path / "run", WORDS[0], "--svg", picture) == 0
    shown = [one.text for one in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {*WORDS[0].split()} <= {*shown}
    assert run("parse", tmp_path / "run", *WORDS, "--svg", picture) == 2
    assert "one sentence, not 3" in capsys.readouterr().err
    trellis.train(SENTENCES, tmp_path / "bigram", family="bigram")
    assert run("parse", tmp_path / "bigram", "a cat") == 2
