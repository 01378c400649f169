"""Training a POS HMM, from a small tagged text to files that tag."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.training import valid_by_epoch
from taggers import CONFIG, fit, texts
from trellis.config import run_config
from trellis.corpus import Sentences, tagged
from trellis.corpus.lexicon import Lexicon
from trellis.corpus.tagged import Tagged, load_tagged
from trellis.errors import TrellisError
from trellis.families.hmm_tagger.fit import (
    Texts,
    both_ways,
    new_tagger,
    percent_wrong,
    read,
    states_of_tags,
    tag_scores,
    tags_of_states,
    with_kinds,
)
from trellis.families.hmm_tagger.model import HMMTagger
from trellis.learning.em import EMLearner
from trellis.models.files import load
from trellis.options import to_tables
from trellis.tasks.tagging import score_tags
from trellis.testing.close import assert_close
from trellis.training import run


def test_em_learns_to_tag_by_context(tmp_path: Path) -> None:
    model, state = fit(CONFIG, texts(), tmp_path)
    assert state.outcome == "epochs"
    assert model.tag([["a", "hits", "hits", "the", "cow"]]) == [["D", "N", "V", "D", "N"]]
    assert tag_scores(model, texts())["test_accuracy"] == 100.0


@pytest.mark.parametrize(
    "choices",
    [["model.params=table"], ["model.params=neural", "model.dim=16", "model.spelling=true"]],
    ids=["table", "neural"],
)
def test_gradients_learn_with_classes_and_dropout(choices: list[str], tmp_path: Path) -> None:
    more = ["train.learner=gradient", "train.lr=0.05", "train.epochs=8", "model.emission=brown", "model.classes=3"]
    more += ["model.states=24", "model.dropout=state", "model.dropout_rate=0.25"]
    model, _ = fit(run_config(to_tables(CONFIG), more + choices), texts(), tmp_path)
    assert model.params.partition is not None
    assert tag_scores(model, texts())["test_accuracy"] > 90.0


def share_of_verbs(model: HMMTagger, word: str) -> float:
    """The share of the states of verbs in the emissions of a word."""
    emission = model.parts().emission
    emitted = emission.log_probs(int(model.lexicon.words(["", word])[1])).detach().exp()
    verbs = emission.tags.detach().argmax(0) == model.lexicon.tags.index("V")
    return float(emitted[verbs].sum() / emitted.sum())


def test_words_are_learned_from_untagged_text() -> None:
    """`hits` has the tag of a noun more often than that of a verb, but without tags it stands where verbs do."""
    words = [*[["the", "hits"]] * 5, *[["the", "dog", verb, "the", "cat"] for verb in ("hits", *["sees"] * 20)]]
    train = Tagged(words, [["D", "N", "V", "D", "N"][: len(line)] for line in words])
    more = [["the", "dog", "hits", "the", "cat"], ["the", "cat", "hits", "the", "dog"]] * 10

    alone, both = (
        fit(CONFIG, texts(splits=texts().splits | {"train": train}, untagged=untagged))[0] for untagged in ([], more)
    )
    assert share_of_verbs(both, "hits") > share_of_verbs(alone, "hits") + 0.1


def test_untagged_text_adds_no_words_or_spelling_classes() -> None:
    """Else a word that is common in untagged text alone would train no spelling class, and unknown words would get
    spelling classes that have no tags."""
    more = [["the", "newt", "eats", "the", "newt"], ["a", "newting", "sees", "the", "dog"]] * 10
    alone, both = (fit(CONFIG, texts(untagged=untagged))[0].lexicon for untagged in ([], more))
    assert alone == both


WORDS = ["model.untagged_words=3", "model.backoff=0.5", "model.hard_tags=true", "model.rare=50"]


def newts() -> Texts:
    """Tagged text in which all verbs end in -s, and untagged text with a new noun in -s."""
    nouns, verbs = ["newt", "frog", "toad", "crab"], ["hears", "fears", "wears", "tears"]
    words = [["the", noun, verb, "the", "cat"] for noun, verb in zip(nouns * 10, verbs * 10, strict=True)]
    train = Tagged(words, [["D", "N", "V", "D", "N"] for _ in words])
    more = [["the", "bears", verb, "the", "bears"] for verb in verbs]  # eight times
    return texts(splits=texts().splits | {"train": train}, untagged=more)


def test_a_new_word_begins_with_the_states_of_its_spelling_class() -> None:
    """After an M-step on tagged text, its emissions are those of the class, times backoff / the count of the class."""
    given, config = newts(), run_config(to_tables(CONFIG), [*WORDS, "train.pseudocount=0"])
    tagged, backoff = given["train"], config.model.backoff
    lexicon = Lexicon.choose(tagged.words, tagged.tags, config.model.rare, config.model.min_kind)
    lexicon = lexicon.with_words(given.untagged, config.model.untagged_words)
    split = both_ways(lexicon, replace(given, untagged=[]), config.model.rare)
    model = new_tagger(config, lexicon, split, split).double().requires_grad_(False)
    learner = EMLearner(model, config.train)
    batches = Sentences(split, 1 << 20, shuffle=False)
    learner.step(next(iter(batches)))
    assert learner.totals is not None
    visits, _ = model.parts().emission.split_statistics(learner.totals.emission)
    learner.end_epoch()
    index, emitted = lexicon.vocab.index, model.parts().emission.dense().exp()
    assert not visits[index["bears"]].any()
    expected = emitted[index["<kind a:ears>"]] * backoff / visits[index["<kind a:ears>"]].sum()
    assert_close(emitted[index["bears"]], expected)


def test_words_of_untagged_text_are_learned_by_context() -> None:
    """`bears` is spelled like the verbs and stands where nouns do."""
    given = newts()
    with_word, without = (
        fit(run_config(to_tables(CONFIG), [*WORDS, f"model.untagged_words={fewest}"]), given)[0] for fewest in (8, 9)
    )
    assert share_of_verbs(with_word, "bears") < 0.1
    assert share_of_verbs(without, "bears") > 0.5


@pytest.mark.parametrize("wrong", ["model.backoff=0", "train.learner=gradient"])
def test_new_words_need_backoff_and_em(wrong: str) -> None:
    with pytest.raises(TrellisError, match=r"untagged_words needs train.learner = \"em\" and model.backoff above 0"):
        run_config(to_tables(CONFIG), [*WORDS, wrong])


def test_rare_words_are_read_both_ways() -> None:
    tagged = Tagged([["the", "walking"], ["the", "talking"]], [["D", "N"], ["D", "N"]])
    text = texts(splits={"train": tagged}, untagged=[["walking"]])
    lexicon = Lexicon.choose(tagged.words, tagged.tags, rare=1, common=1)
    split = both_ways(lexicon, text, rare=1)
    read = lexicon.vocab.decode((split.tokens % len(lexicon.vocab)).tolist())
    kind = "<kind a:king>"
    plain = ["the", "walking", "<eos>", "the", "talking", "<eos>", "walking", "<eos>"]
    assert read == [*plain, "the", kind, "<eos>", "the", kind, "<eos>", kind, "<eos>"]
    assert (split.tokens // len(lexicon.vocab)).tolist() == [2, 3, 1, 2, 3, 1, 0, 1] * 2
    thrice = both_ways(lexicon, replace(text, weight=3), rare=1)
    assert (thrice.tokens // len(lexicon.vocab)).tolist() == [2, 3, 1, 2, 3, 1, 0, 1, *[2, 3, 1] * 4] * 2


def test_states_are_shared_out_among_tags() -> None:
    assert tags_of_states(np.array([0, 100, 1, 0]), 4).tolist() == [1, 1, 1, 2]
    assert tags_of_states(np.array([1, 5, 3]), 3).tolist() == [1, 2, 0]
    assert tags_of_states(np.array([1, 5, 3]), 2).tolist() == [1, 2]
    assert np.bincount(tags_of_states(np.array([4, 1]), 11)).tolist() == [7, 4]  # 9 by the roots, and one each
    assert tags_of_states(np.array([0, 0]), 5).tolist() == [0] * 5


def test_rare_words_have_the_class_of_their_kind() -> None:
    lexicon = Lexicon.choose([["the", "the", "walking"], ["the", "talking"]], [["D"]], rare=1, common=1)
    index = lexicon.vocab.index
    classes = torch.arange(len(index))
    moved = with_kinds(classes, lexicon, rare=1)
    assert moved[index["walking"]] == index["<kind a:king>"]
    assert moved[index["the"]] == index["the"]


def test_a_run_writes_a_model_that_tags(tmp_path: Path) -> None:
    result = run.train(CONFIG, tmp_path / "run", data=texts())
    assert result.scores is not None
    assert result.scores["test_accuracy"] == 100.0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["scores"]["values"] == result.scores.values
    model = load(tmp_path / "run")
    assert isinstance(model, HMMTagger)
    assert model.tag([["a", "hits", "hits", "the", "cow"]]) == [["D", "N", "V", "D", "N"]]


@pytest.mark.parametrize(("blind", "name"), [(False, "valid_error"), (True, "valid_ppl")])
def test_metrics_say_what_they_measure(blind: bool, name: str, tmp_path: Path) -> None:
    model, state = fit(CONFIG, texts(blind=blind), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {key for line in lines for key in line if key.startswith("valid")} == {name}
    assert min(line[name] for line in lines) == state.best
    assert valid_by_epoch(state.history) == [line[name] for line in lines]
    valid = texts()["valid"]
    assert blind or state.best == 100 * (1 - score_tags(valid, model.tag(valid.words)).accuracy)


def test_what_cannot_be_trained(tmp_path: Path, tagged_data: None) -> None:
    with pytest.raises(TrellisError, match="Cannot read nowhere"):
        read(run_config(to_tables(CONFIG), ["data.source=nowhere"]))
    with pytest.raises(TrellisError, match="is 'stepwise-em', which is not recognised"):
        run_config(to_tables(CONFIG), ["train.learner=stepwise-em"])


@pytest.fixture
def tagged_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set called toy."""
    toy = texts().splits
    monkeypatch.setitem(tagged.TAGGED, "toy", tagged.TaggedSource("", "conll", dict.fromkeys(toy, ())))
    monkeypatch.setattr(tagged, "load_tagged", lambda name, split: toy[split])


def test_some_tags_and_the_rest_of_the_words(tagged_data: None) -> None:
    found = read(run_config(to_tables(CONFIG), ["data.source=toy", "data.tagged_every=4", "data.untagged=rest"]))
    whole = texts()["train"].words
    assert found["train"].words == whole[::4]
    assert found.untagged == [words for number, words in enumerate(whole) if number % 4]
    assert "225 without tags" in found.description


def test_spans_are_learned_in_one_scheme(tagged_data: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Tagged([["New", "York", "sleeps"]], [["I-LOC", "I-LOC", "O"]])
    monkeypatch.setattr(tagged, "load_tagged", lambda name, split: spans)
    assert read(run_config(to_tables(CONFIG), ["data.source=toy"]))["train"].tags == [["B-LOC", "I-LOC", "O"]]


def test_states_without_tags_are_matched_to_them_afterwards(tmp_path: Path) -> None:
    blind = texts(blind=True)
    model, _ = fit(run_config(to_tables(CONFIG), ["train.epochs=15"]), blind, tmp_path)
    scores = tag_scores(model, blind)
    assert scores["test_many"] > 90.0
    assert scores["test_one"] <= scores["test_many"]
    assert scores["test_viterbi"] > 90.0


@pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA is not set")
def test_a_slice_of_the_english_web_treebank(tmp_path: Path) -> None:
    """A thousand sentences for the classic tagger, which beats the commonest tag of each word."""
    train, valid = load_tagged("ud_ewt", "train")[:1000], load_tagged("ud_ewt", "valid")[:300]
    slices = Texts({"train": train, "valid": valid, "test": valid}, [], "slice")
    choices = ["model.states=0", "model.hard_tags=true", "model.backoff=0.1", "train.epochs=1"]
    model, _ = fit(run_config(to_tables(CONFIG), choices), slices, tmp_path)
    pairs = Counter(pair for row in zip(train.words, train.tags, strict=True) for pair in zip(*row, strict=True))
    commonest = dict(sorted(pairs, key=lambda pair: pairs[pair]))
    baseline = [[commonest.get(word, "NOUN") for word in sentence] for sentence in valid.words]
    assert percent_wrong(model, valid) < 100 * (1 - score_tags(valid, baseline).accuracy) - 2.0


def test_the_sentences_of_an_untagged_text(tmp_path: Path, tagged_data: None) -> None:
    sentences = [[f"w{i}", "x"][: 1 + i % 2] for i in range(40)]  # of one word, and of two
    (tmp_path / "plain.txt").write_text("".join(" ".join(words) + "\n" for words in sentences))
    config = run_config(to_tables(CONFIG), ["data.source=toy", f"data.untagged={tmp_path / 'plain.txt'}"])
    found = read(config).untagged
    assert found == sentences


@pytest.mark.parametrize(("states", "wanted"), [(7, 7), (0, 4)])
def test_the_number_of_states_is_that_of_the_tags_unless_given(states: int, wanted: int) -> None:
    config, given = replace(CONFIG, model=replace(CONFIG.model, states=states)), texts()
    lexicon = Lexicon.choose(given["train"].words, given["train"].tags, CONFIG.model.rare, CONFIG.model.min_kind)
    split = both_ways(lexicon, given, CONFIG.model.rare)
    assert lexicon.tags == ["<eos>", "D", "N", "V"]
    assert new_tagger(config, lexicon, split, split).num_states == wanted


def test_initial_tags_of_states_are_those_of_the_symbols() -> None:
    lexicon = Lexicon.choose([["a", "b", "b"]], [["D", "N", "N"]], rare=0, common=9)
    size, tags = len(lexicon.vocab), lexicon.tags
    model = replace(CONFIG.model, states=2)
    symbols = np.array([3, size, size, 2 * size - 1, 2 * size])  # without a tag; three times the first tag; the second
    assert states_of_tags(symbols, lexicon, model, None).tolist() == [0, 1]
    most = np.array(
        [size] * 3 + [2 * size + 1] * 2
    )  # the first word with the first tag, more often than the second tag
    assert states_of_tags(most, lexicon, replace(model, states=1), None).tolist() == [0]
    assert tags[0] == "<eos>"
