"""scikit-learn's own checks of estimators, with the reason of every one that is expected to fail."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import pytest
import sklearn
from estimator_cases import CASES, CATEGORICAL, GAUSSIANS, LENGTHS, Case, assert_close, set_by_hand
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from trellis import estimators
from trellis.errors import InputError
from trellis.estimators.inputs import SymbolInput

SEQUENTIAL = "a state depends on the observations before and after it"
ONE_COLUMN = "a vector is one feature, as the documentation says"
EXPECTED = {
    "check_dont_overwrite_parameters": "n_features and n_trials are attributes of hmmlearn",
    "check_methods_sample_order_invariance": SEQUENTIAL,
    "check_methods_subset_invariance": SEQUENTIAL,
    "check_fit1d": ONE_COLUMN,
    "check_fit2d_predict1d": ONE_COLUMN,
}
WEIGHTS = dict.fromkeys(
    [
        "check_sample_weights_pandas_series",
        "check_sample_weights_not_an_array",
        "check_sample_weights_list",
        "check_all_zero_sample_weights_error",
        "check_sample_weights_shape",
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
    ],
    "a weight belongs to a sequence, not to an observation",
)
COUNTS = {
    "check_positive_only_tag_during_fit": "the message names the first negative count instead of the data",
}
SYMBOLS = {
    "check_n_features_in": "symbols are one column",
    "check_n_features_in_after_fitting": "symbols are one column",
    "check_estimators_empty_data_messages": "the message does not speak of features",
    "check_transformer_general": "a matrix of another width is another number of sequences, not of features",
}
FACTORIAL = {"check_transformer_preserve_dtypes": "posteriors are float32", **COUNTS}
NOT_FACTORIAL = {"check_dont_overwrite_parameters"}
NUMBERS = [estimators.GaussianHMM, estimators.GMMHMM, estimators.VariationalGaussianHMM, estimators.GaussianDenseHMM]
EVERY = [getattr(estimators, name) for name in vars(estimators) if name.endswith("HMM")] + [estimators.LDSVectors]


def rounded(kind: type, columns: int | None) -> Any:
    """An estimator of counts or symbols that rounds the real numbers of the checks."""

    class Rounded(kind):  # type: ignore[misc, valid-type]
        def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Any:
            with contextlib.suppress(TypeError, ValueError):
                values = np.asarray(X)
                values = values if values.dtype.kind == "c" else np.round(values.astype(np.float64))
                X = values[:, :columns] if values.ndim == 2 and values.size else values if values.ndim == 1 else X
            return super()._read(X, lengths, fitting)

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = tags.input_tags.positive_only = True
            tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.one_d_array = False
            return tags

    Rounded.__name__ = Rounded.__qualname__ = kind.__name__
    globals()[f"{kind.__name__}Rounded"] = Rounded
    Rounded.__qualname__ = f"{kind.__name__}Rounded"  # where pickle finds it
    return Rounded


CHECKED = [
    *[kind(random_state=0, n_iter=2) for kind in NUMBERS],
    *[rounded(kind, None)(random_state=0) for kind in (estimators.PoissonHMM, estimators.MultinomialHMM)],
    *[rounded(kind, 1)(random_state=0) for kind in (estimators.CategoricalHMM, estimators.VariationalCategoricalHMM)],
    rounded(estimators.DenseHMM, 1)(random_state=0, n_iter=1),
    rounded(estimators.FactorialHMM, 1)(sizes=(2, 2), epochs=1),
]


def expected(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, estimators.FactorialHMM):
        return {name: why for name, why in (EXPECTED | SYMBOLS | FACTORIAL).items() if name not in NOT_FACTORIAL}
    found = EXPECTED | WEIGHTS | (SYMBOLS if isinstance(estimator, SymbolInput) else {})
    return found | (COUNTS if type(estimator).__module__ == __name__ else {})


if hasattr(estimator_checks, "estimator_checks_generator"):  # scikit-learn 1.6

    @estimator_checks.parametrize_with_checks(CHECKED, expected_failed_checks=expected)
    @pytest.mark.filterwarnings("ignore")
    def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
        check(estimator)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_estimator_can_be_cloned(kind: Any) -> None:
    changed = kind(**{next(iter(kind().get_params())): 3})
    twin = clone(changed)
    assert twin.get_params() == changed.get_params()
    assert twin.get_params() != kind().get_params()


@pytest.fixture
def routing() -> Any:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("case", GAUSSIANS, ids=str)
def test_lengths_are_routed_through_pipelines(case: Case) -> None:
    X = case.data()
    model = case.ours(random_state=0, n_iter=3).set_fit_request(lengths=True).set_score_request(lengths=True)
    pipeline = Pipeline([("scale", StandardScaler()), ("hmm", model)]).fit(X, lengths=LENGTHS)
    scaled = StandardScaler().fit_transform(X)
    alone = case.ours(random_state=0, n_iter=3).fit(scaled, LENGTHS)
    assert_close(pipeline.score(X, lengths=LENGTHS), alone.score(scaled, LENGTHS))
    assert not np.isclose(
        pipeline.score(X, lengths=LENGTHS), case.ours(random_state=0, n_iter=3).fit(scaled).score(scaled)
    )


@pytest.mark.usefixtures("routing")
def test_lengths_are_routed_through_grid_searches() -> None:
    """Sequences as a list, which is split between them; their lengths are split with them."""
    parts = np.split(CATEGORICAL.data()[:, 0], np.cumsum(LENGTHS)[:-1])
    model = estimators.CategoricalHMM(random_state=0, n_features=6)
    plain = GridSearchCV(model, {"n_components": [1, 2]}, cv=2).fit(parts)
    routed = model.set_fit_request(lengths=True).set_score_request(lengths=True)
    search = GridSearchCV(routed, {"n_components": [1, 2]}, cv=2).fit(parts, lengths=LENGTHS)
    assert_close(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_targets_are_ignored_and_positional_lengths_are_not(case: Case) -> None:
    X = case.data()
    targets = np.random.RandomState(0).randint(3, size=len(X))
    one, two = (case.ours(random_state=0, n_iter=2).fit(X, y) for y in (targets, None))
    assert one.monitor_.history == two.monitor_.history
    assert one.score(X, targets) == two.score(X)
    several = case.ours(random_state=0, n_iter=2).fit(X, LENGTHS)
    assert several.monitor_.history == case.ours(random_state=0, n_iter=2).fit(X, lengths=LENGTHS).monitor_.history
    assert several.monitor_.history != one.monitor_.history
    alone = case.ours(random_state=0, n_iter=2).fit(X, np.ones(len(X), int))
    assert_close(alone.transmat_.sum(), 3)
    assert one.n_features_in_ == X.shape[1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_posteriors_as_features(case: Case) -> None:
    pandas = pytest.importorskip("pandas")
    X = case.data()
    model = case.ours(random_state=0, n_iter=2).set_output(transform="pandas")
    frame = model.fit_transform(X, lengths=LENGTHS)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == [f"{case.name.lower()}{state}" for state in range(3)]
    assert_close(frame.to_numpy(), model.predict_proba(X, LENGTHS))


def test_positional_arguments_are_those_of_hmmlearn() -> None:
    """Of every class, in the same order and with the same defaults."""
    hmm, vhmm = pytest.importorskip("hmmlearn.hmm"), pytest.importorskip("hmmlearn.vhmm")
    for name in ("CategoricalHMM", "GaussianHMM", "GMMHMM", "MultinomialHMM", "PoissonHMM", "VariationalCategoricalHMM",
                 "VariationalGaussianHMM"):  # fmt: skip
        ours, theirs = getattr(estimators, name), getattr(hmm if hasattr(hmm, name) else vhmm, name)
        given = [p for p in inspect.signature(theirs.__init__).parameters.values() if p.name != "self"]
        own = list(inspect.signature(ours.__init__).parameters.values())[1:]
        assert [p.name for p in own[: len(given)]] == [p.name for p in given], name
        assert [p.default for p in own[: len(given)]] == [p.default for p in given], name
        assert ours(*[p.default for p in given]).get_params() == ours().get_params()
        assert ours(7).n_components == 7
    with pytest.raises(TypeError, match="at most 13 positional arguments"):
        estimators.CategoricalHMM(*range(14))


PRIORS = [(case, name) for case in CASES for name in case.ours().get_params() if name.endswith(("_prior", "_weight"))]


@pytest.mark.parametrize(("case", "name"), PRIORS, ids=str)
def test_priors_of_the_wrong_shape(case: Case, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} must be a number or an array of shape"):
        case.ours(**{name: np.ones((7, 5))}).fit(case.data(), LENGTHS)
    with pytest.raises(InputError, match=rf"{name} must be a number or an array of shape"):
        case.ours(**{name: "many"}).fit(case.data(), LENGTHS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numpy_may_raise_on_every_floating_point_error(case: Case) -> None:
    X, short = case.data(), case.data()[:12]
    expected = case.ours(random_state=0, n_iter=4).fit(X, LENGTHS)
    with np.errstate(all="raise"):
        model = case.ours(random_state=0, n_iter=4, init_params="")
        set_by_hand(model)
        model.fit(X, LENGTHS)
        for ask in (expected.score, expected.predict, expected.predict_proba, expected.aic):
            ask(X, LENGTHS)
            ask(short)
        expected.sample(5)
        case.ours(random_state=0, n_iter=2).fit(X, LENGTHS).partial_fit(short)


@pytest.mark.parametrize("steps", [30, 300])
@pytest.mark.parametrize("kind", [estimators.GaussianHMM, estimators.GMMHMM, estimators.VariationalGaussianHMM])
def test_probabilities_that_underflow_raise_nothing(kind: Any, steps: int) -> None:
    X = np.concatenate([np.random.RandomState(0).randn(steps, 2), np.full((steps, 2), 500.0)])
    with np.errstate(all="raise"):
        model = kind(2, random_state=0, n_iter=3).fit(X + 0.1 * np.sin(np.arange(4 * steps)).reshape(-1, 2))
        assert set(model.predict(X)) == {0, 1}


def test_n_features_given_after_a_fit() -> None:
    X = [0, 3, 1, 2]
    model = estimators.CategoricalHMM(2, random_state=0).fit(X)
    assert model.get_params()["n_features"] is None
    assert model.set_params(n_features=4).get_params()["n_features"] == 4
    assert model.fit([0, 1]).emissionprob_.shape == (2, 4)
    assert clone(model).n_features == 4


def test_the_stationary_distribution_needs_the_transitions_alone() -> None:
    model = estimators.GaussianHMM(2)
    model.transmat_ = [[0.9, 0.1], [0.3, 0.7]]
    assert_close(model.get_stationary_distribution(), [0.75, 0.25])


def test_a_matrix_of_symbols_is_several_sequences() -> None:
    """hmmlearn reads one long sequence, and warns too."""
    X = np.array([[0, 1], [1, 1], [2, 0]])
    with pytest.warns(UserWarning, match=r"3 sequences of 2 symbols.*reshape\(-1, 1\)"):
        matrix = estimators.CategoricalHMM(2, random_state=0).fit(X)
    assert matrix.monitor_.history == estimators.CategoricalHMM(2, random_state=0).fit(list(X)).monitor_.history


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_integer_seed_stays_one(case: Case) -> None:
    """Fitting again gives the same model; hmmlearn replaces the seed of some classes by a generator."""
    model = case.ours(random_state=4, n_iter=2).fit(case.data(), LENGTHS)
    history = list(model.monitor_.history)
    assert model.random_state == 4
    assert list(model.fit(case.data(), LENGTHS).monitor_.history) == history
