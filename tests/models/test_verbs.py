"""Verbs on text: every form of a text has the same answer, and a list has those of its sentences."""

from __future__ import annotations

import doctest
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import trellis
from trellis.errors import TrellisError
from trellis.models import base, text
from trellis.models.base import PersistedModel

CLOSE = 1e-5  # float32, other batches
SENTENCES = ["the cat sees the dog", "a dog runs", "it runs", "a cat runs to the big dog", "the zebra runs"]
TRAIN = [*SENTENCES[:4], "the dog sees it"] * 12
TAGS = {"the": "D", "a": "D", "big": "J", "to": "P", "sees": "V", "runs": "V"}
TAGGED = [[(word, TAGS.get(word, "N")) for word in line.split()] for line in TRAIN]
SETTINGS: dict[str, dict[str, Any]] = {
    "hmm": {"states": 4, "epochs": 2},
    "fhmm": {"layers": 2, "states": 3, "epochs": 2},
    "hmm-tagger": {"states": 8, "epochs": 2},
    "lds": {"dim": 2, "blocks": 2, "epochs": 2},
    "bigram": {},
    "ngram": {"model": {"order": 3}},
    "feedforward": {"dim": 4, "epochs": 1},
    "lstm": {"dim": 4, "epochs": 1},
    "rnn": {"dim": 4, "epochs": 1},
    "crf": {},
}
STATEFUL = ["hmm", "fhmm", "hmm-tagger"]
CHAINS = ["hmm", "hmm-tagger"]
NETWORKS = ["feedforward", "lstm", "rnn"]
LANGUAGE_MODELS = [*STATEFUL, "bigram", "ngram", *NETWORKS]
EMBEDDING = [*STATEFUL, "lds", *NETWORKS]
ANSWERING = {
    "log_prob": LANGUAGE_MODELS,
    "predict": LANGUAGE_MODELS,
    "sample": LANGUAGE_MODELS,
    "posterior": STATEFUL,
    "viterbi": STATEFUL,
    "infill": CHAINS,
    "states": CHAINS,
    "embed": EMBEDDING,
}
KINDS = {
    **{family: ["posterior", "filtered", "viterbi"] for family in STATEFUL},
    "lds": ["smoothed", "filtered", "type"],
    **{family: ["type"] for family in NETWORKS},
}
ASKED = [(verb, family) for verb in ("log_prob", "predict", "posterior", "viterbi") for family in ANSWERING[verb]]
EMBEDDED = [(family, kind) for family, kinds in KINDS.items() for kind in kinds]


@cache
def trained(family: str) -> Any:
    data = TAGGED if family in ("hmm-tagger", "crf") else TRAIN
    words = {} if family in ("hmm-tagger", "crf") else {"tokenizer": "whitespace"}
    return trellis.train(data, family=family, device="cpu", **words, **SETTINGS[family]).model


def ids(model: PersistedModel, sentence: str) -> np.ndarray:
    return model.encode_words(sentence.split())


def numbers(answer: Any) -> np.ndarray:
    """The numbers of one answer, in a row."""
    if isinstance(answer, base.Path):
        return np.append(answer.states.ravel(), answer.log_prob)
    if isinstance(answer, list):  # ranked words
        return np.array([probability for _, probability in answer])
    return np.ravel(answer)


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(numbers(one), numbers(other), atol=CLOSE, rtol=CLOSE)


def check_forms(model: Any, ask: Any) -> None:
    """The answers of sentences alone, in every form, are those of lists in every form."""
    alone = [ask(sentence) for sentence in SENTENCES]
    arrays = [ids(model, sentence) for sentence in SENTENCES]
    assert_same(ask(SENTENCES), alone)
    assert_same(ask(tuple(SENTENCES)), alone)
    assert_same(ask([sentence.split() for sentence in SENTENCES]), alone)
    assert_same(ask(arrays), alone)
    assert_same(ask([torch.from_numpy(array) for array in arrays]), alone)
    assert_same([ask(array.astype(np.int32)) for array in arrays], alone)
    assert_same([ask(torch.from_numpy(array)) for array in arrays], alone)
    assert_same(ask(np.stack([arrays[1], arrays[4]])), [alone[1], alone[4]])
    assert_same(ask(torch.from_numpy(np.stack([arrays[4], arrays[1]]))), [alone[4], alone[1]])
    assert len(ask([])) == 0


@pytest.fixture(params=[text.TOKENS, 9], ids=["one batch", "several"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TOKENS", request.param)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(("verb", "family"), ASKED)
def test_every_form_of_a_text_has_the_same_answer(verb: str, family: str) -> None:
    check_forms(trained(family), getattr(trained(family), verb))


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(("family", "kind"), EMBEDDED)
def test_every_form_of_a_text_has_the_same_vectors(family: str, kind: str) -> None:
    model = trained(family)
    check_forms(model, lambda given: model.embed(given, kind))
    check_forms(model, lambda given: model.embed(given, kind, complete=False))
    (vectors,) = model.embed(SENTENCES[:1], kind)
    assert vectors.dtype == np.float32
    assert len(vectors) == 5
    if kind == KINDS[family][0]:
        np.testing.assert_array_equal(model.embed(SENTENCES[0]), vectors)


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_log_prob_and_predictions_are_those_of_score_and_forecast(family: str) -> None:
    model = trained(family)
    for sentence in SENTENCES:
        row = torch.from_numpy(np.append(ids(model, sentence), model.vocab.eos))[None]
        with torch.no_grad():
            log_probs, _ = model.score(row, model.sentence_start(1))
            _, state = model.score(row[:, :-1], model.sentence_start(1))
            forecast = model.forecast(state)[0].exp()
        found = model.log_prob(sentence)
        assert type(found) is float
        assert found == pytest.approx(float(log_probs.double().sum()), rel=CLOSE)
        np.testing.assert_allclose(model.token_log_probs(sentence), log_probs[0].numpy(), atol=CLOSE)
        word, probability = model.predict(sentence, n=1)[0]
        assert probability == pytest.approx(float(forecast.max()), abs=CLOSE)
        assert float(forecast[model.vocab.index[word]]) == pytest.approx(probability, abs=CLOSE)
    assert model.log_prob(SENTENCES).dtype == np.float64
    assert model.log_prob("\n".join(SENTENCES) + "\n") == pytest.approx(model.log_prob(SENTENCES).sum(), rel=CLOSE)


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_a_sentence_may_begin_with_nothing(family: str) -> None:
    model = trained(family)
    first, second, third = model.predict(["", "the dog", []], n=4)
    assert_same([first, second, third], [model.predict(n=4), model.predict("the dog", 4), model.predict(n=4)])
    assert len(first) == 4


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("family", STATEFUL)
def test_posteriors_and_paths_are_those_of_the_tensors(family: str, complete: bool) -> None:
    model = trained(family)
    for sentence in SENTENCES:
        row = torch.from_numpy(np.append(ids(model, sentence), np.repeat(model.vocab.eos, complete)))[None]
        words = row.shape[1] - complete
        smooth, filtered = model.smooth(row).probs[0, :words], model.filter(row).probs[0, :words]
        states, log_prob = model.best_path(row)
        np.testing.assert_allclose(model.posterior(sentence, complete), smooth, atol=CLOSE)
        np.testing.assert_allclose(model.embed(sentence, "posterior", complete), smooth, atol=CLOSE)
        np.testing.assert_allclose(model.embed(sentence, "filtered", complete), filtered, atol=CLOSE)
        path = model.viterbi(sentence, complete)
        np.testing.assert_array_equal(path.states, states[0, :words])
        assert path.log_prob == pytest.approx(float(log_prob), rel=CLOSE)
        layers = np.split(model.embed(sentence, "viterbi", complete), np.cumsum(model.sizes)[:-1], axis=1)
        best = np.stack([layer.argmax(1) for layer in layers], 1)
        np.testing.assert_array_equal(best, path.states.reshape(words, -1))
        assert {float(layer.sum(1).min()) for layer in layers} == {1.0}


def test_the_end_of_a_sentence_tells_something() -> None:
    model = trained("hmm")
    assert np.abs(model.posterior(SENTENCES[0]) - model.posterior(SENTENCES[0], complete=False)).max() > CLOSE
    np.testing.assert_allclose(
        model.embed(SENTENCES[0], "filtered"), model.embed(SENTENCES[0], "filtered", complete=False), atol=CLOSE
    )


def test_a_factorial_hmm_has_exact_posteriors_too() -> None:
    model = trained("fhmm")
    row = model.encode_line(SENTENCES[0], eos=True)
    exact = model.smooth(row, exact=True).probs[0, :-1]
    np.testing.assert_allclose(model.posterior(SENTENCES[0], exact=True), exact, atol=CLOSE)
    np.testing.assert_allclose(
        model.posterior(SENTENCES, sweeps=1)[0], model.smooth(row, sweeps=1).probs[0, :-1], atol=CLOSE
    )


def test_vectors_of_a_linear_dynamical_system() -> None:
    model = trained("lds")
    for complete in (True, False):
        row = model.encode_line(SENTENCES[0], eos=complete)
        expected = {
            "smoothed": model.unit(model.smooth(row)),
            "filtered": model.unit(model.filter(row).means),
            "type": model.type_vectors()[row],
        }
        for kind, vectors in expected.items():
            np.testing.assert_allclose(model.embed(SENTENCES[0], kind, complete), vectors[0, :5], atol=CLOSE)


@pytest.mark.parametrize("family", NETWORKS)
def test_vectors_of_a_network_are_its_embeddings(family: str) -> None:
    model = trained(family)
    np.testing.assert_array_equal(model.embed("the dog"), model.embedding.detach()[ids(model, "the dog")])


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("family", CHAINS)
def test_gaps_of_a_list_are_those_of_its_sentences(family: str, complete: bool) -> None:
    model = trained(family)
    gaps = ["the ___ sees ___", "a ___ runs", "___", "the ___ runs to the big dog"]
    alone = [model.infill(line, 5, 4, 1, complete) for line in gaps]
    tokens = [line.split() for line in gaps]
    arrays = [np.array([-1 if word == "___" else ids(model, word)[0] for word in line.split()]) for line in gaps]
    for found in (model.infill(given, 5, 4, 1, complete) for given in (gaps, tokens, arrays)):
        for one, other in zip(found, alone, strict=True):
            assert (one.best, one.samples) == (other.best, other.samples)
            assert_same(one.gaps, other.gaps)
    assert [len(one.gaps) for one in alone] == [2, 1, 1, 1]
    assert all(len(one.samples) == 4 for one in alone)
    assert alone[1].best.split()[::2] == ["a", "runs"]


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("family", CHAINS)
def test_an_empty_sentence_has_an_empty_answer(family: str, complete: bool) -> None:
    model = trained(family)
    for verb in (model.posterior, model.embed):
        first, empty, last = verb([SENTENCES[0], "", SENTENCES[1]], complete=complete)
        assert empty.shape == (0, model.num_states)
        assert verb(" ", complete=complete).shape == (0, model.num_states)
        assert_same([first, last], [verb(SENTENCES[0], complete=complete), verb(SENTENCES[1], complete=complete)])
    path = model.viterbi([[], ["the"]], complete)[0]
    assert path.states.size == 0
    end = model.best_path(torch.tensor([[model.vocab.eos]]))[1]
    assert path.log_prob == pytest.approx(float(end) if complete else 0.0, abs=CLOSE)
    filled, nothing = model.infill(["a ___ runs", ""], 5, 2, 1, complete)
    assert (nothing.gaps, nothing.best, nothing.samples) == ([], "", ["", ""])
    assert filled.samples == model.infill("a ___ runs", 5, 2, 1, complete).samples


def test_rows_of_tokens_are_the_vectors_and_their_largest_entries() -> None:
    model = trained("fhmm")
    texts = ["the  cat sees", "", "dogs"]
    vectors = np.concatenate(model.embed(texts))
    rows = model.embed_rows(texts)
    places = [(row["sentence"], row["number"], row["token"], row["start"], row["end"]) for row in rows]
    assert places == [(1, 1, "the", 0, 3), (1, 2, "cat", 5, 8), (1, 3, "sees", 9, 13), (3, 1, "dogs", 0, 4)]
    np.testing.assert_array_equal(np.stack([row["vector"] for row in rows]), vectors)
    best = model.embed_rows(texts, top=2)
    assert [(row["layer"], row["rank"]) for row in best] == [(0, 1), (0, 2), (1, 1), (1, 2)] * len(vectors)
    first, second = np.split(vectors, 2, 1)
    expected = np.stack([np.sort(first, 1)[:, ::-1][:, :2], np.sort(second, 1)[:, ::-1][:, :2]], 1)
    np.testing.assert_array_equal([row["probability"] for row in best], expected.ravel())
    layers = [first, second]
    for row, one in zip(best, np.repeat(np.arange(len(vectors)), 4), strict=True):
        assert layers[row["layer"]][one, row["state"]] == row["probability"]
    assert model.embed_rows([["the", "cat"]])[1]["start"] is None
    with pytest.raises(TrellisError, match=r"This lstm model has no hidden states"):
        trained("lstm").embed_rows("the", top=1)


def test_samples_and_states() -> None:
    for family in LANGUAGE_MODELS:
        assert trained(family).sample(3, seed=1) == trained(family).sample(3, seed=1)
    for family in CHAINS:
        summaries = trained(family).states(3, words=2)
        assert [len(summary.words) for summary in summaries] == [2, 2, 2]


def test_a_tagger_reads_an_unknown_word_by_its_spelling() -> None:
    model = trained("hmm-tagger")
    words = ["the", "zebra", "Runs"]
    np.testing.assert_array_equal(model.encode_words(words), model.lexicon.words(words))


@pytest.mark.parametrize(
    ("family", "verb"), [(f, verb) for verb, able in ANSWERING.items() for f in SETTINGS if f not in able]
)
def test_what_a_family_cannot_answer_is_refused_in_one_sentence(family: str, verb: str) -> None:
    model = trained(family)
    arguments = [] if verb in ("sample", "states") else ["the ___"]
    with pytest.raises(TrellisError, match=rf"^This {model.name} model .*: {verb}\(\) is for [^.]*\.$"):
        getattr(model, verb)(*arguments)


def test_the_refusal_says_what_is_missing() -> None:
    expected = r"This bigram model has no hidden states: posterior\(\) is for HMMs and factorial HMMs\."
    with pytest.raises(TrellisError, match=expected):
        trained("bigram").posterior("a dog")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("a\nb", "The text has 2 lines"),
        (["a", "b\nc\nd"], "Sentence 2 has 3 lines"),
        (3, "of type int"),
        (None, "of type NoneType"),
        ([3, 4], "Sentence 1 has the unsupported type int"),
        ([["the", 4]], "Sentence 1 contains the token 4, which is not a string"),
        (np.array([0.0, 1.0]), "The text is a 1-D array of float64"),
        (np.array(3), "The text is a 0-D array of int64"),
        (np.zeros((2, 2, 2), int), "Sentence 1 is a 2-D array of int64"),
        (np.array([0, 10_000]), "The text contains the id 10000; valid ids are 0 to"),
        ([np.array([0, -1])], "Sentence 1 contains the id -1"),
    ],
    ids=str,
)
def test_what_is_no_text_is_told(given: Any, told: str) -> None:
    model = trained("hmm")
    for verb in ("posterior", "viterbi", "embed", "embed_rows", "token_log_probs"):
        with pytest.raises(TrellisError, match=told) as caught:
            getattr(model, verb)(given)
        assert "pass" in str(caught.value) or "valid ids are" in str(caught.value)


@pytest.mark.parametrize("family", EMBEDDING)
def test_an_unknown_kind_of_vectors_is_refused_with_the_known_ones(family: str) -> None:
    with pytest.raises(TrellisError, match=f"no 'loud' features; it has {', '.join(KINDS[family])}"):
        trained(family).embed("the dog", "loud")


def test_digits_and_capitals_are_treated_as_in_training() -> None:
    model = trellis.train(["Call 911 now", "call 12 now"] * 20, family="bigram", lower=True, digits=True).model
    assert model.log_prob([["CALL", "7", "now"]])[0] == pytest.approx(model.log_prob("call 12 now"))


def test_the_examples() -> None:
    assert doctest.testmod(base, extraglobs={"trellis": trellis}) == (0, 20)
