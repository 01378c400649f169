"""A factorial HMM of symbol sequences as a scikit-learn estimator: fit, transform, predict, score, sample."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from trellis.corpus import Split, Vocabulary
from trellis.corpus.batches import Sentences
from trellis.devices import choose_device
from trellis.estimators.fitted import one_of
from trellis.estimators.inputs import Array, SymbolInput, lengths_of, refuse
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner, VariationalEMLearner
from trellis.tasks.lm import evaluate

LEARNERS = {"em": VariationalEMLearner, "stepwise-em": StepwiseVariationalLearner}
BATCH_TOKENS = 8192


@dataclass(repr=False, eq=False)
class FactorialHMM(SymbolInput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A factorial HMM: several hidden chains (layers) that jointly emit each symbol.

    The input is that of CategoricalHMM. `score` is exact. `fit`, `transform` and `predict` use a mean-field
    approximation.

    Fitted attributes: `model_`, the FHMM; `bounds_`, the bound on the log-likelihood in each epoch; `symbols_`, the
    names of the symbols if the model was fitted to strings.

    Parameters
    ----------
    sizes
        The number of states of each layer.
    bound
        The bound on the likelihood that EM maximises: "tilted" or "jensen".
    learner
        "em", or "stepwise-em" for large data.
    epochs
        The number of passes over the data.
    weight_decay
        The weight decay of the emission weights, with learner "em".
    em_power
        With learner "stepwise-em", batch k = 2, 3, ... has the step size (k + 1) ** -em_power.
    sweeps
        Mean-field sweeps over the layers per batch.
    missing_values : object
        A value that marks missing observations, besides None, pandas.NA and masked entries.
    random_state : int, RandomState or None
        The seed or generator of initial values.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.

    Examples
    --------
    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.FactorialHMM((2, 2), random_state=0).fit(X).predict(X[:3]).shape
    (3, 2)
    """

    sizes: tuple[int, ...] = (10, 10)
    _: KW_ONLY
    bound: str = "tilted"
    learner: str = "em"
    epochs: int = 20
    weight_decay: float = 1e-4
    em_power: float = 0.6
    sweeps: int = 4
    missing_values: Any = None
    random_state: Any = 0
    device: str = "cpu"

    def fit(self, X: Any, y: Any = None, lengths: Any = None) -> Self:
        """Fit the model to sequences by variational EM, which maximises a mean-field bound on the likelihood. `lengths`
        may also be passed as the second argument."""
        make_learner = LEARNERS[one_of(tuple(LEARNERS), self.learner, "learner")]
        split = self._read(X, lengths_of(X, y, lengths), fitting=True)
        self.n_features_in_ = 1
        counts = np.bincount(split.tokens[split.tokens >= 0])
        names = getattr(self, "symbols_", range(len(counts)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        vocab = Vocabulary([str(name) for name in names], counts.tolist())
        self.model_ = FHMM.new(vocab, tuple(self.sizes), self.bound, seed=seed).to(choose_device(self.device))
        config = FHMMTrainConfig(weight_decay=self.weight_decay, em_power=self.em_power, sweeps=self.sweeps)
        learner, batches = make_learner(self.model_, config), Sentences(split, BATCH_TOKENS, seed)
        self.bounds_: list[float] = []
        for _ in range(self.epochs):
            self.bounds_.append(sum(float(learner.step(batch).log_likelihood) for batch in batches))
            learner.end_epoch()
        self.model_.eval()
        return self

    def transform(self, X: Any, lengths: Any = None) -> Array:
        """Approximate (mean-field) posteriors of the states of every layer, concatenated: [n_samples, sum of sizes]."""
        batches = self._batches(X, lengths)
        return np.concatenate(batches.each(lambda batch: self.model_.smooth(batch.tokens, batch.lengths).probs))

    def fit_transform(self, X: Any, y: Any = None, lengths: Any = None) -> Array:
        lengths = lengths_of(X, y, lengths)
        return self.fit(X, lengths=lengths).transform(X, lengths)

    def predict(self, X: Any, lengths: Any = None) -> Array:
        """The most probable path of each layer under the approximate (mean-field) posterior: [n_samples, layers]."""
        batches = self._batches(X, lengths)
        return np.concatenate(batches.each(lambda batch: self.model_.best_path(batch.tokens, batch.lengths)[0]))

    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """The exact log-likelihood log p(X)."""
        batches = self._batches(X, lengths_of(X, y, lengths))
        return evaluate(self.model_, batches).log_likelihood

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Array, Array]:
        """Sample one sequence: symbols [n_samples, 1] and states [n_samples, layers]."""
        check_is_fitted(self, "model_")
        random = check_random_state(self.random_state if random_state is None else random_state)
        states, words = self.model_.sample_layers(1, n_samples, int(random.randint(2**31 - 1)))
        symbols = words[0].cpu().numpy()
        return getattr(self, "symbols_", np.arange(len(self.model_.vocab)))[symbols][:, None], states[0].cpu().numpy()

    @property
    def _n_features_out(self) -> int:
        """The number of columns that `transform` returns."""
        return sum(self.sizes)

    def _batches(self, X: Any, lengths: Any) -> Sentences:
        check_is_fitted(self, "model_")
        return Sentences(self._read(X, lengths), BATCH_TOKENS, shuffle=False)

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Split:
        """Read sequences as tokens, -1 where missing; symbols unseen in fitting raise an error."""
        observed, _ = self._read_integers(X, lengths, fitting)
        if not fitting:
            unknown = observed.values >= len(self.model_.vocab)
            refuse(unknown, "an unknown symbol", "only symbols seen in fitting are accepted")
        ends = np.append(0, observed.lengths.cumsum())
        return Split(np.where(observed.missing, -1, observed.values).astype(np.int32), ends, ends[[0, -1]])
