"""Every public name takes what a user has: strings, lists, tuples, paths, arrays, tensors, pandas columns, iterators.

The answers are those for a list; what cannot be meant is refused in one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trellis
from trellis.config import with_settings
from trellis.training.run import train as train_run

TEXT = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 10
TAGGED = [[("the", "D"), ("cat", "N"), ("runs", "V")], [("a", "D"), ("dog", "N"), ("sees", "V")]] * 10
SMALL = {"states": 3, "epochs": 1, "tokenizer": "whitespace", "device": "cpu"}
TAGGERS: dict[str, dict[str, Any]] = {"crf": {"iterations": 2}, "hmm-tagger": {"states": 3, "epochs": 1}}
SYMBOLS = [0, 1, 2, 1, 0, 2] * 5
NUMBERS = np.random.default_rng(0).normal(size=(40, 2))
MODELS = [
    "FHMM",
    "HMM",
    "LDS",
    "LSTM",
    "RNN",
    "CRFTagger",
    "FeedForward",
    "HMMTagger",
    "NGram",
    "PCFG",
]  # made by `train`
RESULTS = ["Corpus", "Family", "RunConfig", "Scores", "Trained", "Vocabulary"]
MASKS = ["ergodic", "first_state", "left_right"]
WITHOUT_DATA = [*MODELS, *RESULTS, *MASKS, "Callback", "TensorBoard", "TrellisError"]


def column(values: Any, index: int = 7) -> Any:
    """A pandas column, with an index that does not begin at 0."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.Series(values, index=range(index, index + len(values)))


def frame(values: Any) -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed").DataFrame({"text": values})


def ragged(values: Any) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found


LISTS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "array": ragged,
    "column": column,
    "categories": lambda values: column(values).astype("category"),
    "iterator": iter,
}
TEXTS = LISTS | {"strings": np.array, "string column": lambda values: column(values).astype("string")}
NESTED = {name: LISTS[name] for name in ("tuple", "array", "column", "iterator")}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(TEXT) + "\n")
    return path


@pytest.fixture(scope="module")
def model() -> Any:
    return trellis.train(TEXT, **SMALL).model


@pytest.fixture(scope="module", params=TAGGERS)
def tagger(request: pytest.FixtureRequest) -> Any:
    return trellis.train(TAGGED, family=request.param, **TAGGERS[request.param]).model


def test_every_public_name_is_tested_here() -> None:
    own = Path(__file__).read_text()
    assert all(name in WITHOUT_DATA or f"trellis.{name}" in own or f'"{name}"' in own for name in trellis.__all__)


@pytest.mark.parametrize("kind", TEXTS)
def test_train_read_corpus_and_evaluate(kind: str, model: Any) -> None:
    make = TEXTS[kind]
    assert trellis.train(make(TEXT), **SMALL).model.log_prob("the dog") == model.log_prob("the dog")
    corpus = trellis.read_corpus(make(TEXT), tokenizer="whitespace")
    assert corpus.vocab.words == trellis.read_corpus(TEXT, tokenizer="whitespace").vocab.words
    assert trellis.evaluate(model, make(TEXT)) == trellis.evaluate(model, TEXT)
    assert trellis.compare([model, model], make(TEXT)) == trellis.compare([model, model], TEXT)


@pytest.mark.parametrize("kind", NESTED)
def test_tokenised_text(kind: str, model: Any) -> None:
    tokens = [line.split() for line in TEXT]
    corpus = trellis.read_corpus(NESTED[kind](tokens))
    assert corpus.vocab.words == model.vocab.words
    np.testing.assert_array_equal(model.log_prob(NESTED[kind](tokens)), model.log_prob(TEXT))


@pytest.mark.parametrize("as_given", [str, Path])
def test_paths(as_given: Callable[[Path], Any], file: Path, tmp_path: Path) -> None:
    given = as_given(file)
    trained = trellis.train(given, as_given(tmp_path / "run"), **SMALL)
    assert trained.run == tmp_path / "run"
    loaded = trellis.load(as_given(tmp_path / "run"))
    assert loaded.log_prob("the dog") == trained.model.log_prob("the dog")
    for name in ("folder", "file.safetensors"):
        loaded.save(as_given(tmp_path / name))
        assert trellis.load(as_given(tmp_path / name)).num_states == 3
    corpus = trellis.read_corpus(given, tokenizer="whitespace")
    assert corpus.vocab.words == loaded.vocab.words
    assert trellis.evaluate(as_given(tmp_path / "run"), given) == trellis.evaluate(loaded, given)
    assert (
        trellis.compare([as_given(tmp_path / "run")], given)[0].perplexity == trellis.evaluate(loaded, given).perplexity
    )
    toml = tmp_path / "run.toml"
    toml.write_text(f'device = "cpu"\n[data]\nsource = "{file}"\n[model]\nstates = 3\n[train]\nepochs = 1\n')
    assert trellis.train(as_given(toml), as_given(tmp_path / "toml")).run == tmp_path / "toml"
    config = with_settings("hmm", SMALL | {"data": {"source": str(file)}})
    assert train_run(config, as_given(tmp_path / "again")).run == tmp_path / "again"


@pytest.mark.parametrize("kind", TEXTS)
def test_constraints_and_guides(kind: str, model: Any) -> None:
    sentences = ["the cat runs", "a dog runs"]
    given = trellis.constraints.one_of(TEXTS[kind](sentences))
    expected = model.constrain(trellis.constraints.one_of(sentences), most=5)
    assert model.constrain(given, most=5).log_prob() == expected.log_prob()
    bigram = trellis.train(TEXT, family="bigram").model
    assert {*trellis.guide(model, given, most=5).sample(bigram, 5)} <= {*sentences}


@pytest.mark.parametrize("verb", ["log_prob", "token_log_probs", "predict", "posterior", "viterbi", "embed"])
def test_queries(verb: str, model: Any) -> None:
    ask = getattr(model, verb)
    sentences = ["the cat runs", "a dog"]
    expected = ask(sentences)
    for kind, make in TEXTS.items():
        assert same(ask(make(sentences)), expected), kind
    ids = model.vocab.encode(sentences[0].split())
    for one in ("the cat runs", np.str_("the cat runs"), ids, torch.tensor(ids), column(ids)):
        assert same(ask(one), expected[0])
    for two in (np.stack([ids, ids]), torch.tensor(np.stack([ids, ids])), [ids, torch.tensor(ids)]):
        assert same(ask(two), [expected[0], expected[0]])


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal, arrays within tuples and lists included."""
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float | np.ndarray):
        return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6))
    return bool(found == expected)


def test_infill(model: Any) -> None:
    expected = model.infill(["the ___ runs", "a ___"])
    for kind, make in TEXTS.items():
        assert same(model.infill(make(["the ___ runs", "a ___"])), expected), kind
    assert same(model.infill("the ___ runs"), expected[0])


@pytest.mark.parametrize("kind", NESTED)
def test_taggers(kind: str, tagger: Any, tmp_path: Path) -> None:
    make, words = NESTED[kind], [["the", "cat", "runs"], ["a", "dog"]]
    assert tagger.tag(make(words)) == tagger.tag(words)
    assert tagger.tag(np.array([["the", "cat"]])) == tagger.tag([["the", "cat"]])
    assert trellis.evaluate(tagger, make(TAGGED)) == trellis.evaluate(tagger, TAGGED)
    again = trellis.train(make(TAGGED), family=tagger.family, **TAGGERS[tagger.family]).model
    assert again.tag(words) == tagger.tag(words)
    tagger.save(str(tmp_path / "saved"))
    assert trellis.load(tmp_path / "saved").tag(words) == tagger.tag(words)


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "array": np.array,
    "column of an array": lambda values: np.array(values)[:, None],
    "tensor": torch.tensor,
    "column": column,
    "frame": frame,
    "iterator": iter,
    "lists": lambda values: [values],
    "tensors": lambda values: [torch.tensor(values)],
    "columns": lambda values: [column(values)],
    "column of lists": lambda values: column([values]),
}


@pytest.mark.parametrize(
    "name", ["CategoricalHMM", "DenseHMM", "PoissonHMM", "FactorialHMM", "VariationalCategoricalHMM", "MultinomialHMM"]
)
@pytest.mark.parametrize("kind", COLUMNS)
def test_estimators_of_symbols(name: str, kind: str) -> None:
    if name in ("PoissonHMM", "MultinomialHMM") and kind in ("lists", "tensors", "columns", "column of lists"):
        pytest.skip("for counts, a list with one list is a row of several features")
    make: Any = getattr(trellis, name)
    options: dict[str, Any] = {"epochs": 1} if name == "FactorialHMM" else {"n_iter": 2, "tol": 0.0}
    fitted = [
        make([2, 2] if name == "FactorialHMM" else 2, random_state=0, **options).fit(given)
        for given in (SYMBOLS, COLUMNS[kind](SYMBOLS))
    ]
    expected = fitted[0].score(SYMBOLS)
    assert fitted[1].score(COLUMNS[kind](SYMBOLS)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["CategoricalHMM", "DenseHMM"])
@pytest.mark.parametrize("make", [list, tuple, np.array, column, iter])
def test_estimators_of_strings(name: str, make: Callable[[Any], Any]) -> None:
    text = "abacabca" * 4
    fitted = getattr(trellis, name)(2, random_state=0, n_iter=2, tol=0.0).fit(text)
    assert fitted.score(make([*text])) == pytest.approx(fitted.score(text))


@pytest.mark.parametrize("name", ["GaussianHMM", "GaussianDenseHMM", "GMMHMM", "VariationalGaussianHMM"])
@pytest.mark.parametrize("kind", ["list", "tensor", "frame", "lists", "tensors", "iterator"])
def test_estimators_of_numbers(name: str, kind: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    kinds: dict[str, Callable[[np.ndarray], Any]] = {
        "list": np.ndarray.tolist,
        "tensor": torch.tensor,
        "frame": pandas.DataFrame,
        "lists": lambda values: [values],
        "tensors": lambda values: [torch.tensor(values)],
        "iterator": iter,
    }
    options: dict[str, Any] = {"random_state": 0, "n_iter": 2, "tol": 0.0}
    fitted = getattr(trellis, name)(2, **options).fit(NUMBERS)
    assert fitted.score(kinds[kind](NUMBERS)) == pytest.approx(fitted.score(NUMBERS))


@pytest.mark.parametrize("kind", ["tuple", "array", "column"])
def test_selection_and_plots(kind: str) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed").Figure()
    fitted = trellis.CategoricalHMM(2, random_state=0, n_iter=2).fit(SYMBOLS)
    given = COLUMNS[kind](SYMBOLS)
    for plot in (trellis.plot_posterior, trellis.plot_states):
        assert plot(fitted, given, ax=figure.subplots()).get_xlabel()
    assert trellis.plot_transitions(fitted, ax=figure.subplots()).get_xlabel()
    options = {"n_components": [1, 2], "random_state": 0}
    chosen = [trellis.select_states(trellis.CategoricalHMM, x, **options) for x in (SYMBOLS, given)]
    assert isinstance(chosen[0], trellis.Selection)
    assert chosen[0].best.n_components == chosen[1].best.n_components


@pytest.mark.parametrize("make", [list, tuple, iter])
def test_figures_of_language_models(make: Callable[[Any], Any], model: Any, tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed").Figure()
    ids = model.vocab.encode(["the", "cat"])
    for text in ("the cat", ids, torch.tensor(ids)):
        assert len(trellis.plot_trellis(model, text, ax=figure.subplots()).get_xticklabels()) == 3
    rows = trellis.compare([model, model], TEXT)
    assert len(trellis.plot_comparison(make(rows), ax=figure.subplots()).lines) == 2
    trained = trellis.train(TEXT, tmp_path / "run", **SMALL | {"epochs": 2})
    for run in (trained, trained.run, str(trained.run)):
        assert len(trellis.plot_training(run, ax=figure.subplots()).lines) == 2
    for width in ("page", 3, np.float64(3)):
        with trellis.figure_style(width):
            assert pytest.importorskip("matplotlib").rcParams["pdf.fonttype"] == 42


@pytest.mark.parametrize("kind", ["tuple", "array", "column"])
def test_filters_and_forecasts(kind: str) -> None:
    fitted = trellis.CategoricalHMM(2, random_state=0, n_iter=2).fit(SYMBOLS)
    assert same([fitted.filter(COLUMNS[kind](SYMBOLS))], [fitted.filter(SYMBOLS)])
    state = fitted.filter_step(None, SYMBOLS[0])
    assert isinstance(state, trellis.FilterState)
    assert isinstance(fitted.forecast(2, state), trellis.Forecast)


@pytest.mark.parametrize("kind", ["tuple", "array", "column", "iterator"])
def test_word_vectors(kind: str) -> None:
    vectors = trellis.LDSVectors(2, iterations=1, blocks=2).fit(TEXT)
    again = trellis.LDSVectors(2, iterations=1, blocks=2).fit(LISTS[kind](TEXT))
    assert same([*again.transform(LISTS[kind](TEXT[:2]))], [*vectors.transform(TEXT[:2])])


NO_TEXT: dict[str, Callable[[], Any]] = {
    "frame": lambda: frame(TEXT),
    "dict": lambda: {"a": 1},
    "number": lambda: 3,
    "bytes": lambda: b"the cat",
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_is_no_text_is_refused(kind: str, model: Any) -> None:
    data = NO_TEXT[kind]()
    calls: list[Callable[[Any], Any]] = [lambda data: trellis.train(data, **SMALL), trellis.read_corpus]
    for call in [*calls, lambda data: trellis.evaluate(model, data), model.log_prob, model.posterior, model.infill]:
        with pytest.raises(trellis.TrellisError, match=r"is not a text|[Uu]nsupported|has no gap|is not a string"):
            call(data)


def test_what_is_no_path_is_refused(model: Any) -> None:
    for call in (trellis.load, model.save, lambda path: trellis.train(TEXT, path, **SMALL), trellis.evaluate):
        with pytest.raises(trellis.TrellisError, match=r"A path must be a string or a pathlib.Path, not int\."):
            call(3)


@pytest.mark.parametrize("given", ["the cat", ["the cat"], 3, None, [3]])
def test_taggers_need_words(given: Any, tagger: Any) -> None:
    with pytest.raises(trellis.TrellisError, match=r"split it into words|each split into words"):
        tagger.tag(given)
