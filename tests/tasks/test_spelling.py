"""The character model of unknown words against the formula, and open-vocabulary evaluation against sums by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import trellis
from trellis.corpus import Vocabulary
from trellis.errors import TrellisError
from trellis.tasks.compare import Text, compare, spelled_log_probs, spelling_of
from trellis.tasks.lm import load_split
from trellis.tasks.spelling import CODE_POINTS, EDGE, Spelling

EXACT = 1e-12
words = st.text("abcé😀", max_size=6)


def by_formula(corpus: list[str], character: str, context: str) -> float:
    """Witten-Bell by its definition, from substring counts of the marked words."""
    texts = [EDGE + word + EDGE for word in corpus]

    def smoothed(history: str) -> float:
        lower = smoothed(history[1:]) if history else 1 / CODE_POINTS
        after = Counter(
            text[i] for text in texts for i in range(1, len(text)) if text[:i].endswith(history) and i >= len(history)
        )
        if not after:
            return lower
        return (after[character] + len(after) * lower) / (after.total() + len(after))

    return smoothed(context[-4:])


@given(st.lists(words, min_size=1, max_size=6), words, st.sampled_from("abcé😀xß\n"))
def test_probabilities_follow_the_formula(corpus: list[str], prefix: str, character: str) -> None:
    found = Spelling(corpus).prob(character, EDGE + prefix)
    assert found == pytest.approx(by_formula(corpus, character, EDGE + prefix), rel=EXACT)


@given(st.lists(words, max_size=6), words)
def test_probabilities_after_any_context_sum_to_one(corpus: list[str], prefix: str) -> None:
    """Over all code points: those seen, and as many times the probability of one that was not."""
    model, seen = Spelling(corpus), {*"".join(corpus), EDGE}
    total = math.fsum(model.prob(character, EDGE + prefix) for character in seen)
    total += (CODE_POINTS - len(seen)) * model.prob("\U0010ffff", EDGE + prefix)
    assert total == pytest.approx(1, abs=1e-9)


def test_probabilities_of_all_words_sum_to_one() -> None:
    """Words of any length over a few letters have almost all the probability; the rest is that of other letters."""
    model = Spelling(["ab", "ba", "a"] * 1000)
    shorter = [sum(math.exp(model.log_prob("".join(word))) for word in product("ab", repeat=n)) for n in range(12)]
    assert 0.999 < sum(shorter) < 1
    assert model.log_prob("語") > -math.inf


def test_it_is_estimated_from_words_seen_once_whatever_the_vocabulary(tmp_path: Path) -> None:
    rare = [f"w{i}x{i % 7}" for i in range(300)]
    lines = [f"the cat {word} sees twice{i // 2} a dog the the" for i, word in enumerate(rare)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    options = [{}, {"min_count": 1}, {"max_size": 5}]
    corpora = [trellis.read_corpus(tmp_path / "text.txt", **option) for option in options]
    found = [Spelling.of_training_text(corpus.vocab, corpus["train"]) for corpus in corpora]
    train = " ".join(lines[:270]).split()
    once = [word for word, count in Counter(train).items() if count == 1]
    assert {model.num_words for model in found} == {len(once)}
    assert len({model.log_prob("wnew") for model in found}) == 1
    assert found[0].log_prob("wnew") == pytest.approx(Spelling(sorted(once)).log_prob("wnew"), rel=EXACT)
    few = Spelling.of_training_text(Vocabulary(["<eos>", "a", "b", "<unk>"], [3, 2, 1, 1]), None)
    assert few.num_words == 2  # of fewer than 100 words seen once: all words


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bigram models of one text with three vocabularies, one of characters, and one without any <unk>."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(["the", "cat", "dog", "sees", f"new{i}"], rng.integers(2, 9))) for i in range(900)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    options = {"default": {}, "all": {"min_count": 1}, "few": {"max_size": 4}, "letters": {"tokenizer": "characters"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        for name, option in options.items():
            trellis.train(folder / "text.txt", folder / name, family="bigram", **option)
    return folder


@pytest.fixture(autouse=True)
def own_cache(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(runs / "cache"))


def test_an_open_vocabulary_by_hand(runs: Path) -> None:
    model = trellis.load(runs / "default")
    result = trellis.evaluate(model, open_vocabulary=True)
    text = load_split(model)
    original = (runs / "text.txt").read_text().splitlines(keepends=True)[-45:]
    assert result.characters == len("".join(original))
    tokens = [word if word in model.vocab.index else "<unk>" for line in original for word in (*line.split(), "<eos>")]
    assert model.vocab.decode(text.tokens) == tokens
    unknown = [word for line in original for word in line.split() if word not in model.vocab.index]
    assert len(unknown) > 20
    spelling = spelling_of(model)
    bits = -(result.log_likelihood + sum(map(spelling.log_prob, unknown))) / math.log(2) / result.characters
    assert result.open_bits_per_character == pytest.approx(bits, rel=EXACT)
    assert result.open_bits_per_character > result.bits_per_character
    assert trellis.evaluate(model).open_bits_per_character is None


def test_vocabularies_of_any_size_compare(runs: Path) -> None:
    names = ["default", "all", "few", "letters"]
    rows = compare([runs / name for name in names], open_vocabulary=True, contexts=0)
    assert len({row.characters for row in rows}) == 1
    assert rows[2].bits_per_character < rows[0].bits_per_character  # flattered by a small vocabulary
    assert rows[2].open_bits_per_character > rows[0].open_bits_per_character
    assert [row.unk_is_trained for row in rows] == [True, False, True, False]
    for name, row in zip(names, rows, strict=True):
        alone = trellis.evaluate(runs / name, open_vocabulary=True)
        assert row.open_bits_per_character == pytest.approx(alone.open_bits_per_character, rel=EXACT)
    for row in rows[1:]:
        assert row.against_first.perplexity is None
        difference = row.against_first.open_bits_per_character
        expected = row.open_bits_per_character - rows[0].open_bits_per_character
        assert difference.difference == pytest.approx(expected, rel=1e-9)
        assert difference.low < difference.difference < difference.high
    with pytest.raises(TrellisError, match=r"differ in vocabulary.*--open .* compares bits per character"):
        compare([runs / "default", runs / "few"])
    (runs / "other.txt").write_text("the cat sees the dog\n" * 50)
    trellis.train(runs / "other.txt", runs / "other", family="bigram")
    with pytest.raises(TrellisError, match="different texts"):
        compare([runs / "default", runs / "other"], open_vocabulary=True)


def test_a_texts_own_unk_is_not_spelled(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat <unk> the dog\n" * 60 + "the <unk> zebra\n" * 3)
    model = trellis.train(tmp_path / "text.txt", family="bigram").model
    text, spelling = Text(model.vocab, load_split(model)), spelling_of(model)
    assert text.split.unknown_words().count("zebra") == 3
    found = spelled_log_probs(text, spelling)
    assert sorted(set(found)) == sorted({0.0, spelling.log_prob("zebra")})
    assert int((found < 0).sum()) == 3


def test_a_text_from_python_is_spelled_by_the_vocabulary() -> None:
    model = trellis.train(["the cat sees", "a dog sees"] * 30, family="bigram").model
    result = trellis.evaluate(model, ["the zebra"], open_vocabulary=True)
    expected = Spelling(["a", "cat", "dog", "sees", "the"]).log_prob("zebra")
    assert result.spelling == pytest.approx(expected, rel=EXACT)
    assert result.characters == 10


def test_a_mixture_with_an_ngram_is_normalised(runs: Path) -> None:
    """Every word's probability is the weighted sum of the two models', so all sum to one."""
    alone, ngram, mixed = compare([runs / "default"], split="valid", interpolate=True, ngram=3)
    assert ngram.model == "3-gram of the training text"
    assert sum(mixed.weights) == pytest.approx(1)
    models = trellis.load(runs / "default"), trellis.train(runs / "text.txt", family="ngram", order=3).model
    assert ngram.perplexity == pytest.approx(trellis.evaluate(models[1], split="valid").perplexity)
    rows = [model.token_log_probs(["the cat", "dog dog sees"]) for model in models]
    for one, other in zip(*rows, strict=True):
        assert np.all(mixed.weights[0] * np.exp(one) + mixed.weights[1] * np.exp(other) <= 1)
    forecasts = [model.forecast(model.score(model.encode_line("the cat"), model.start(1))[1]) for model in models]
    total = sum(weight * forecast.double().exp() for weight, forecast in zip(mixed.weights, forecasts, strict=True))
    assert float(total.sum()) == pytest.approx(1, abs=1e-9)
    assert mixed.perplexity <= min(alone.perplexity, ngram.perplexity) * (1 + 1e-9)
