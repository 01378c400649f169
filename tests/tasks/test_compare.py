"""Models side by side: the same tokens for all, the worst contexts, and what cannot be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import trellis
from corpora import WORDS, split, vocabulary
from trellis.config import RunConfig, run_config
from trellis.corpus.batches import Documents, Sentences, Streams
from trellis.errors import TrellisError
from trellis.families.neural.rnn import LSTM
from trellis.models.files import load
from trellis.tasks.compare import INTERPOLATED, Text, around, compare, worst_contexts
from trellis.tasks.lm import READINGS, evaluate, in_text_order, load_split
from trellis.tasks.mixture import cache_log_probs
from trellis.training.run import train

EXACT = 1e-9
FLOAT32 = 1e-5
SMALL_LSTM = {"family": "lstm", "dim": 4, "epochs": 1}


def config(source: Path, family: str, order: str = "streams") -> RunConfig:
    tables = {
        "data": {"source": str(source), "valid_fraction": 0.2, "test_fraction": 0.2},
        "model": {"family": family},
        "batches": {"order": order, "lanes": 4, "window": 8},
    }
    return run_config(tables, [] if family.endswith("gram") else ["model.dim=4", "train.epochs=1"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models trained on one text, read in different ways."""
    folder = tmp_path_factory.mktemp("runs")
    text = split(200)
    lines = [" ".join(WORDS[i] for i in text.tokens[a : b - 1]) for a, b in pairwise(text.sentences)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        for family, order in {"bigram": "streams", "lstm": "documents", "feedforward": "sentences"}.items():
            train(config(folder / "text.txt", family, order), folder / family)
        (folder / "other.txt").write_text("a zebra\n" * 60)
        train(config(folder / "other.txt", "unigram"), folder / "other")
        (folder / "shuffled.txt").write_text("\n".join(reversed(lines)) + "\n")
        train(config(folder / "shuffled.txt", "bigram"), folder / "shuffled")
    return folder


@pytest.fixture(autouse=True)
def own_cache(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(runs / "cache"))


def test_tokens_come_in_the_order_of_the_text() -> None:
    """Whatever the order of the batches: every piece of the text is scored as if it were alone."""
    torch.manual_seed(0)
    model, text = LSTM(vocabulary(), 4).double().eval(), split()
    streams = Streams(text, 3, 7)
    pieces = {streams: streams.bounds, Sentences(text, 20): text.sentences, Documents(text, 3, 5): text.documents}
    for batches, bounds in pieces.items():
        rows = [torch.tensor(text.tokens[a:b].astype("int64"))[None] for a, b in pairwise(bounds)]
        with torch.no_grad():
            expected = torch.cat([model.score(row, model.start(1))[0][0] for row in rows])
        found = in_text_order(model, batches)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=EXACT)
        assert evaluate(model, batches).log_likelihood == pytest.approx(found.sum(), abs=EXACT)


def test_rows_hold_the_figures_of_the_training(runs: Path) -> None:
    rows = compare([runs / name for name in ("bigram", "lstm", "feedforward")], None, None)
    assert [row.family for row in rows] == ["bigram", "lstm", "feedforward"]
    assert [row.order for row in rows] == ["streams", "documents", "sentences"]
    assert len({row.tokens for row in rows}) == 1
    for row in rows:
        model = load(row.model)
        assert 1 < row.perplexity < 2 * len(model.vocab)
        for bands in (row.by_frequency, row.by_position):
            total = sum(-band.tokens * math.log(band.perplexity) for band in bands)
            assert total == pytest.approx(row.log_likelihood, rel=FLOAT32)
    assert rows[0].against_first is None
    for row in rows[1:]:
        assert row.against_first.perplexity.difference == pytest.approx(row.perplexity - rows[0].perplexity)


def test_one_model_given_twice(runs: Path) -> None:
    one, other = compare([runs / "bigram", runs / "bigram"], None, "test")
    assert other.against_first.perplexity.p_value == 1
    assert other.against_first.losses == other.against_first.gains == []
    assert replace(other, against_first=None) == one


def test_interpolation_is_no_worse_on_valid(runs: Path) -> None:
    *alone, mixed = compare(
        [runs / name for name in ("bigram", "lstm", "feedforward")], None, "valid", interpolate=True
    )
    assert mixed.family == INTERPOLATED
    assert mixed.order == "mixed"
    assert sum(mixed.weights) == pytest.approx(1)
    assert mixed.perplexity <= min(row.perplexity for row in alone) * (1 + EXACT)
    on_test = compare([runs / name for name in ("bigram", "lstm", "feedforward")], None, "test", interpolate=True)[-1]
    assert on_test.weights == mixed.weights


def test_rows_of_dynamic_evaluation_and_the_cache(runs: Path) -> None:
    names = [runs / "bigram", runs / "lstm"]
    bigram, lstm, adapted, mixed, cached = compare(names, None, "valid", interpolate=True, cache=True, dynamic=True)
    assert adapted.model == f"{runs / 'lstm'}, dynamic"
    assert adapted.dynamic is not None
    assert bigram.dynamic is lstm.dynamic is mixed.dynamic is None
    assert adapted.perplexity <= lstm.perplexity * (1 + FLOAT32)
    assert len(mixed.weights) == 3
    assert len(cached.weights) == 4
    assert mixed.perplexity <= min(row.perplexity for row in (bigram, lstm, adapted)) * (1 + EXACT)
    assert cached.perplexity <= mixed.perplexity * (1 + EXACT)
    assert sum(cached.weights) == pytest.approx(1)
    assert 0 < cached.cache_decay < 1
    on_test = compare(names, None, "test", cache=True, dynamic=True)
    assert [row.weights for row in on_test] == [None, None, None, cached.weights]
    assert on_test[2].dynamic == adapted.dynamic


def test_models_of_a_text_from_python_take_their_training_text_from_the_corpus() -> None:
    corpus = trellis.read_corpus([" ".join(WORDS[i] for i in (1, 2, 1, 3)), " ".join(WORDS[i] for i in (2, 3))] * 20)
    bigram, lstm = (trellis.train(corpus, **config).model for config in ({"family": "bigram"}, SMALL_LSTM))
    for more, expected in (({"ngram": 2}, bigram), ({"dynamic": True}, lstm)):
        first, added = compare([expected], corpus, "test", **more)
        assert added.perplexity == pytest.approx(first.perplexity) if "ngram" in more else added.dynamic is not None
        with pytest.raises(TrellisError, match="pass a Corpus with a training split"):
            compare([expected], ["a b"], **more)


def test_the_cache_needs_only_one_model(runs: Path) -> None:
    alone, cached = compare([runs / "bigram"], None, "valid", cache=True)
    tokens, words = load_split(load(runs / "bigram"), None, "valid").tokens, len(WORDS)
    own = in_text_order(load(runs / "bigram"), READINGS["streams"](load_split(load(runs / "bigram"), None, "valid")))
    mixed = cached.weights[0] * np.exp(own) + cached.weights[1] * np.exp(
        cache_log_probs(tokens, cached.cache_decay, words)
    )
    assert np.log(mixed).sum() == pytest.approx(cached.log_likelihood, rel=EXACT)
    assert alone.weights is None


def test_worst_contexts_are_the_largest_differences() -> None:
    text = Text(vocabulary(), split(30))
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(-3, 1, (2, text.split.tokens.size))
    found = worst_contexts(text, ours, theirs, 4)
    order = np.argsort(ours - theirs)[:4]
    assert [(c.log_prob, c.other) for c in found] == [(ours[t], theirs[t]) for t in order]
    for context, place in zip(found, order, strict=True):
        word = WORDS[text.split.tokens[place]]
        assert context.text == around(text, int(place))
        assert f"[{word}]" in context.text.split()
    assert len(worst_contexts(text, ours, theirs, 10_000)) == int((theirs > ours).sum())


def test_the_context_is_the_sentence() -> None:
    text = Text(
        vocabulary(), split(1)._replace(tokens=np.array([1, 2, 4, 5, 3, 0, 1, 0]), sentences=np.array([0, 6, 8]))
    )
    assert around(text, 1) == "the [cat] sees a dog"
    assert around(text, 5) == "the cat sees a dog [<eos>]"
    assert around(text, 6) == "[the]"


def test_impossible_tokens_come_first() -> None:
    text = Text(vocabulary(), split(2))
    ours, theirs = np.full((2, text.split.tokens.size), -2.0)
    ours[3], ours[1], theirs[1] = -np.inf, -np.inf, -np.inf
    (context,) = worst_contexts(text, ours, theirs, 5)
    assert context.log_prob == -math.inf
    assert context.text == around(text, 3)


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (["bigram", "other"], {}, "differ in vocabulary"),
        (["bigram", "shuffled"], {}, "were trained on different texts; choose one for both with --data"),
        (["bigram"], {"interpolate": True}, "pass at least two models"),
        (["bigram"], {"dynamic": True}, "none of the models has a gradient"),
        (["bigram", "nowhere"], {}, "There is no model at"),
    ],
)
def test_what_cannot_be_compared(names: list[str], options: dict, sentence: str, runs: Path) -> None:
    with pytest.raises(TrellisError, match=sentence):
        compare([runs / name for name in names], None, None, **options)


@pytest.mark.parametrize(
    "options", [{"ngram": 5, "interpolate": True}, {"ngram": 2, "split": "none"}, {"dynamic": True}]
)
def test_missing_splits_are_found_before_any_work(
    options: dict, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.txt").write_text("the dog sees\n" * 9)
    for work in ("ngram_of", "Dynamic", "score_text"):
        monkeypatch.setattr(f"trellis.tasks.compare.{work}", Mock(side_effect=AssertionError))
    with pytest.raises(TrellisError, match=r"no (valid|none) split; it has train"):
        compare([runs / "lstm"], tmp_path / "other.txt", **options)


def test_models_of_one_vocabulary_on_a_text_named_for_both(runs: Path) -> None:
    one, other = compare([runs / "bigram", runs / "shuffled"], str(runs / "text.txt"), "all")
    assert one.tokens == other.tokens


def test_damaged_model_and_empty_split(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes((runs / "lstm" / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(TrellisError, match="cut is truncated, damaged or not"):
        compare([runs / "bigram", tmp_path / "cut"], None, None)
    empty = split(1)._replace(tokens=np.array([], np.int32), sentences=np.array([0]), documents=np.array([0]))
    with pytest.raises(TrellisError, match="The split is empty"):
        in_text_order(load(runs / "lstm"), Streams(empty, 1, 9))
