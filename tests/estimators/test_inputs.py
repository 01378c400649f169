"""What estimators accept, what they make of it, and what they say about what they refuse."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from estimator_cases import CATEGORICAL, GAUSSIANS, POISSON, assert_close, set_by_hand

from trellis.errors import InputError, TrellisError
from trellis.estimators import CategoricalHMM, GaussianHMM, PoissonHMM
from trellis.estimators.inputs import read_numbers, read_symbols

SEQUENCES = [[0, 1, 2, 1], [2, 0], [1, 1, 0]]
FLAT, LENGTHS = [0, 1, 2, 1, 2, 0, 1, 1, 0], [4, 2, 3]
LETTERS = np.array(list("abc"))


def pandas() -> Any:
    return pytest.importorskip("pandas")


@pytest.mark.parametrize(
    "X",
    [
        SEQUENCES,
        tuple(map(tuple, SEQUENCES)),
        [np.array(part) for part in SEQUENCES],
        [np.array(part)[:, None] for part in SEQUENCES],
        [[[symbol] for symbol in part] for part in SEQUENCES],
        np.array([np.array(part, np.uint8) for part in SEQUENCES], dtype=object),
    ],
    ids=["lists", "tuples", "arrays", "columns", "nested columns", "object array"],
)
def test_lists_of_sequences(X: Any) -> None:
    read = read_symbols(X)
    assert read.values.tolist() == FLAT
    assert read.lengths.tolist() == LENGTHS
    assert not read.missing.any()


@pytest.mark.parametrize(
    "X",
    [
        FLAT,
        np.array(FLAT),
        np.array(FLAT, np.uint8)[:, None],
        [[symbol] for symbol in FLAT],
        [np.array([symbol]) for symbol in FLAT],
        np.array(FLAT, float),
        np.array(FLAT, object),
    ],
    ids=["list", "array", "column", "column of lists", "column of arrays", "floats", "objects"],
)
def test_one_array_with_lengths(X: Any) -> None:
    read = read_symbols(X, LENGTHS)
    assert read.values.tolist() == FLAT
    assert read.lengths.tolist() == LENGTHS
    assert read_symbols(X).lengths.tolist() == [len(FLAT)]


def test_rows_are_sequences() -> None:
    with pytest.warns(UserWarning, match="read as 2 sequences of 3 symbols"):
        read = read_symbols(np.arange(6).reshape(2, 3))
    assert (read.values.tolist(), read.lengths.tolist()) == ([0, 1, 2, 3, 4, 5], [3, 3])


def test_strings_and_columns_of_strings() -> None:
    assert read_symbols("abba").values.tolist() == list("abba")
    assert read_symbols([["a", "bc"], ["a"]]).lengths.tolist() == [2, 1]
    words = ["walk", "shop", "clean"]
    for X in (words, np.array(words), np.array(words, object)[:, None], pandas().Series(words)):
        read = read_symbols(X)
        assert (read.values.tolist(), read.lengths.tolist()) == (words, [3])


PROTEINS = ["MKVLAAGIVGLLLAQ", "MSTNPKPQRKTKRNT", "MKVLAAGIVGLLAQW"]
SENTENCES = ["the cat", "a dog sat", "the dog"]


@pytest.mark.parametrize("X", [PROTEINS, SENTENCES, np.array(PROTEINS), PROTEINS[:1], [None, *PROTEINS]])
def test_strings_that_look_like_sequences_are_symbols_with_a_warning(X: Any) -> None:
    with pytest.warns(UserWarning, match=re.escape("[list(s) for s in X]")) as caught:
        model = CategoricalHMM(1).fit(X)
    assert caught[0].filename == __file__
    assert set(model.symbols_) <= {*PROTEINS, *SENTENCES}


@pytest.mark.parametrize(
    "X",
    [
        "MKVLAAGIVGLLLAQ",
        [list(protein) for protein in PROTEINS],
        [sentence.split() for sentence in SENTENCES],
        ["the", "cat", "saw", "the", "other", "cat", "and", "a", "dog"],
        ["clicked the button", "opened the page"] * 5,
        [["Buenos Aires", "Rio de Janeiro"], ["New York"]],
    ],
    ids=["string", "characters", "words", "text", "repeated events", "sequences of names"],
)
def test_symbols_and_sequences_of_symbols_give_no_warning(X: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CategoricalHMM(1).fit(X)
    assert not caught


def test_lengths_state_that_strings_are_symbols() -> None:
    assert CategoricalHMM(1).fit(PROTEINS, lengths=[3]).n_features == 3


def test_pandas_columns() -> None:
    frame = pandas().DataFrame({"symbol": FLAT, "letter": LETTERS[FLAT], "weight": np.arange(9.0)})
    assert read_symbols(frame["symbol"], LENGTHS).values.tolist() == FLAT
    assert read_symbols(frame[["symbol"]]).values.tolist() == FLAT
    assert read_symbols(frame["letter"].astype("category")).values.tolist() == LETTERS[FLAT].tolist()
    assert read_symbols([frame["letter"][:4], frame["letter"][4:]]).lengths.tolist() == [4, 5]
    assert read_numbers(frame[["symbol", "weight"]]).values.shape == (9, 2)
    gaps = pandas().Series([0, None, 2], dtype="Int64")
    assert read_symbols(gaps).missing.tolist() == [False, True, False]
    assert read_symbols(pandas().Series(["a", None])).missing.tolist() == [False, True]


@pytest.mark.parametrize(
    ("X", "missing_values"),
    [
        ([0, None, 2, 1], None),
        (np.ma.masked_array([0, 7, 2, 1], [False, True, False, False]), None),
        (np.ma.masked_array([[0], [7], [2], [1]], [[False], [True], [False], [False]]), None),
        ([0.0, np.nan, 2.0, 1.0], np.nan),
        ([0, -1, 2, 1], -1),
    ],
    ids=["none", "masked", "masked column", "nan", "minus one"],
)
def test_missing_symbols(X: Any, missing_values: Any) -> None:
    read = read_symbols(X, missing_values=missing_values)
    assert read.missing.tolist() == [False, True, False, False]
    assert read.seen.tolist() == [0, 2, 1]


def test_missing_labels() -> None:
    for X, missing_values in ((["a", None, "b"], None), (["a", "?", "b"], "?"), (["a", np.nan, "b"], np.nan)):
        given = np.array(X, object) if missing_values != "?" else X
        assert read_symbols(given, missing_values=missing_values).missing.tolist() == [False, True, False]


def test_missing_numbers() -> None:
    hole = np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]])
    for X, missing_values in (
        (hole, np.nan),
        (np.ma.masked_invalid(hole), None),
        ([[1.0, 2.0], [None, 3.0], [4.0, 5.0]], None),
        ([hole[:1], hole[1:]], np.nan),
    ):
        read = read_numbers(X, missing_values=missing_values)
        assert read.missing.tolist() == [False, True, False]
        assert_close(read.seen, hole[[0, 2]])


def test_numbers() -> None:
    assert read_numbers([1.0, 2.0, 3.0]).values.shape == (3, 1)
    assert read_numbers([[1, 2], [3, 4]]).lengths.tolist() == [2]
    ragged = read_numbers([[1.0, 2.0], [3.0]])
    assert (ragged.values.shape, ragged.lengths.tolist()) == ((3, 1), [2, 1])
    matrices = read_numbers([np.zeros((2, 3)), np.ones((4, 3))])
    assert (matrices.values.shape, matrices.lengths.tolist()) == ((6, 3), [2, 4])


@pytest.mark.parametrize(
    ("X", "lengths", "sentence"),
    [
        ([0, -2, 1], None, "negative symbol at observation 1"),
        ([0.0, 1.5], None, "not an integer at observation 1"),
        ([0.0, np.nan], None, "a NaN at observation 1"),
        (np.array(["a", np.nan], object), None, "a NaN at observation 1"),
        ([0, 1, 2], [1, 1], "lengths sum to 2, but X has 3 samples"),
        ([0, 1, 2], [3, 0], "Sequence 1 is empty"),
        ([0, 1, 2], [1.5, 1.5], "must be integers"),
        ([0, 1, 2], [-1, 4], "must be integers"),
        ([[0, 1], []], None, "Sequence 1 is empty"),
        ([], None, "X is empty"),
        ("", None, "X is empty"),
        (SEQUENCES, [4, 3, 2], "omit the lengths"),
        (np.zeros((2, 2, 2), int), None, "shape"),
        ([None, None], None, "All observations in X are missing"),
        ([{}, {}], None, "neither numbers nor strings"),
    ],
)
def test_symbols_refused(X: Any, lengths: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        CategoricalHMM(2).fit(X, lengths=lengths)


@pytest.mark.parametrize(
    ("X", "sentence"),
    [
        ([[1.0], [np.nan]], "a NaN at observation 1"),
        ([[1.0], [np.inf]], "infinite number at observation 1"),
        (["a", "b"], "expected numbers"),
        (np.zeros((2, 2, 2)), "shape"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "different numbers of features"),
        ([None], "All observations in X are missing"),
    ],
)
def test_numbers_refused(X: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        GaussianHMM(1).fit(X)


@pytest.mark.parametrize(("X", "sentence"), [([[1.5]], "count that is not an integer"), ([[-1]], "negative count")])
def test_counts_refused(X: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        PoissonHMM(1).fit(X)


def test_features_refused() -> None:
    for case in (GAUSSIANS[0], POISSON):
        model = case.ours()
        set_by_hand(model)
        with pytest.raises(InputError, match="X has 3 features"):
            model.score(np.ones((4, 3)))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("startprob_", [0.5, 0.6, 0.2], "startprob_ must sum to 1"),
        ("startprob_", [0.5, 0.5], r"startprob_ must have the shape \(3,\)"),
        ("startprob_", [1.5, -0.5, 0.0], "negative"),
        ("transmat_", np.ones((3, 3)), "transmat_ rows must sum to 1"),
        ("transmat_", np.eye(2), "transmat_ must have the shape"),
        ("emissionprob_", np.full((3, 6), np.nan), "NaN"),
        ("emissionprob_", np.full((3, 6), 0.2), "emissionprob_ rows must sum to 1"),
    ],
)
def test_parameters_refused(name: str, value: Any, sentence: str) -> None:
    model = CATEGORICAL.ours(init_params="")
    set_by_hand(model)
    setattr(model, name, value)
    for ask in (model.score, model.fit, model.decode, lambda X: model.sample(1)):
        with pytest.raises(ValueError, match=sentence) as caught:
            ask([0, 1])
        assert isinstance(caught.value, TrellisError)


@pytest.mark.parametrize(
    ("kind", "covars"),
    [
        ("diag", -np.ones((3, 2))),
        ("full", np.ones((3, 2))),
        ("tied", [[1.0, 2.0], [2.0, 1.0]]),
        ("spherical", np.zeros(3)),
    ],
)
def test_covariances_refused(kind: str, covars: Any) -> None:
    with pytest.raises(InputError, match="covars_"):
        GaussianHMM(3, kind).covars_ = covars


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_components": 0}, "n_components is 0: it must be at least 1"),
        ({"algorithm": "best"}, "use viterbi or map"),
        ({"implementation": "fast"}, "use log or scaling"),
        ({"params": "stx"}, "choose from ste"),
        ({"handle_unknown": "ignore"}, "use error or uniform"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "validation_fraction"),
        ({"n_init": 0}, "n_init"),
        ({"n_features": 2}, "unknown symbol 2"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_settings_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        CategoricalHMM(**settings).fit([0, 1, 2])


def test_unknown_symbols() -> None:
    for known, unknown in (([0, 1, 0, 1, 1], [0, 5]), (list("abaab"), list("ax"))):
        model = CategoricalHMM(2, random_state=0).fit(known)
        with pytest.raises(InputError, match=f"the unknown symbol {unknown[1]} at observation 1"):
            model.score(unknown)
        model.set_params(handle_unknown="uniform")
        assert_close(model.score(unknown), model.score(unknown[:1]) + np.log(0.5))
        assert model.predict_proba(unknown).shape == (2, 2)
    with pytest.raises(InputError, match="fitted to strings"):
        model.score([0, 1])
    with pytest.raises(InputError, match="fitted to numbers"):
        CategoricalHMM(2).fit([0, 1]).score("ab")


def test_a_symbol_without_any_probability_counts_as_unknown() -> None:
    model = CategoricalHMM(2, n_features=3, random_state=0, handle_unknown="uniform").fit([0, 1, 1, 0])
    assert_close(model.score([0, 2]), model.score([0]) + np.log(1 / 3))


def test_labels_are_numbers_in_their_order() -> None:
    numbers = CategoricalHMM(2, random_state=0).fit(SEQUENCES)
    labels = CategoricalHMM(2, random_state=0).fit([LETTERS[part].tolist() for part in SEQUENCES])
    assert labels.symbols_.tolist() == LETTERS.tolist()
    assert_close(labels.emissionprob_, numbers.emissionprob_)
    drawn, states = numbers.sample(20, random_state=1)
    named, same_states = labels.sample(20, random_state=1)
    assert named.shape == (20, 1)
    assert (named[:, 0] == LETTERS[drawn[:, 0]]).all()
    assert (states == same_states).all()
    assert not hasattr(labels.fit(SEQUENCES), "symbols_")


def test_sequences_one_by_one_add_up() -> None:
    """Ragged lists are cut into blocks of similar length and put back in order."""
    random = np.random.RandomState(0)
    for case in (CATEGORICAL, *GAUSSIANS, POISSON):
        model = case.ours()
        set_by_hand(model)
        X, lengths = case.data(), [1, 70, 2, 30, 10, 9, 6]
        parts = np.split(X, np.cumsum(lengths)[:-1])
        order = random.permutation(len(parts))
        assert_close(model.score([parts[i] for i in order]), sum(model.score(part) for part in parts))
        assert_close(model.predict_proba(X, lengths), np.concatenate([model.predict_proba(part) for part in parts]))
        assert (model.predict(X, lengths) == np.concatenate([model.predict(part) for part in parts])).all()


@pytest.mark.parametrize("X", [b"abc", [b"abc", b"ab"], np.array([b"a", b"b"])], ids=["bytes", "list", "array"])
def test_bytes_are_refused(X: Any) -> None:
    with pytest.raises(InputError, match=r"X contains bytes; decode them"):
        CategoricalHMM(1).fit(X)


def test_a_table_of_symbols_is_refused() -> None:
    frame = pandas().DataFrame({"user": ["a", "a"], "event": ["x", "y"]})
    for wrong in (frame, frame[[]]):
        with pytest.raises(InputError, match=rf"a DataFrame of {len(wrong.columns)} columns; pass one column"):
            CategoricalHMM(1).fit(wrong)
