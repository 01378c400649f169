"""HMMs parameterised by dense embeddings (DenseHMM), trained by EM or from co-occurrences."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions import Emission
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.categorical import CategoricalHMM
from trellis.estimators.dense_chain import CHAIN, DenseChain, DenseParts
from trellis.estimators.fitted import one_of
from trellis.estimators.gaussian import GaussianHMM
from trellis.estimators.inputs import Array, Observations, lengths_of
from trellis.families.hmm.parameters.embedding import EmbeddingParams
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.inference.stationary import stationary
from trellis.learning import cooccurrence
from trellis.parts import Parts
from trellis.storage import write_text
from trellis.types import Counts


@documented()
@dataclass(repr=False, eq=False)
class GaussianDenseHMM(DenseChain, GaussianHMM):
    """A GaussianHMM whose start and transition probabilities are computed from vectors, as in a DenseHMM.

    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> trellis.GaussianDenseHMM(2, random_state=0).fit(X).means_.shape
    (2, 2)
    """

    _: KW_ONLY
    covariance_type: str = "diag"
    min_covar: float = 1e-3
    params: str = "uzsmc"
    init_params: str = "uzsmc"

    letters = CHAIN | {"m": "means_", "c": "_covars_"}


@documented()
@dataclass(repr=False, eq=False)
class DenseHMM(DenseChain, CategoricalHMM):
    """A CategoricalHMM whose probabilities are computed from vectors of states and symbols by a kernel k.

    - Transition matrix: A[i, j] ∝ k(z_i, u_j).
    - Start distribution: pi[i] ∝ k(z_start, u_i).
    - Emission matrix: B[i, j] ∝ k(w_i, v_j).

    The fitted vectors are `u_`, `z_` [K, l], `z_start_` [l], `w_` [K, l'] and `v_` [V, l'], where l is `n_dims` and l'
    is `emission_dims`. `params` names the vectors to train: `params="zv"` trains only z and v.

    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.DenseHMM(2, random_state=0).fit(X).transmat_.shape
    (2, 2)
    """

    _: KW_ONLY
    startprob_prior: Any = 1.0
    transmat_prior: Any = 1.0
    emission_dims: int | None = None
    emission_kernel: str | None = None
    learning: str = "em"
    loss: str = "frobenius"
    penalty: float = 0.0
    n_epochs: int = 10_000
    params: str = "uzsvw"
    init_params: str = "uzsvw"

    letters = CHAIN | {"v": "v_", "w": "w_"}
    unsupported = (*DenseChain.unsupported, "tied_emissions", "frozen_emissions")

    @property
    def symbol_embeddings_(self) -> Array:
        """The embedding v of each symbol: [V, l']."""
        return self.v_

    def fit(self, X: Any, y: Any = None, lengths: Any = None, *, sample_weight: Any = None, states: Any = None) -> Self:
        """Estimate the embeddings by EM, or from the co-occurrence counts of adjacent symbols."""
        if one_of(("em", "cooccurrence"), self.learning, "learning") == "em":
            return super().fit(X, y, lengths, sample_weight=sample_weight, states=states)
        if sample_weight is not None or states is not None:
            raise InputError('sample_weight and states apply to learning="em" only.')
        self._check_settings()
        observed = self._observe(X, lengths_of(X, y, lengths), fitting=True)
        symbols = np.where(observed.missing, -1, observed.values)
        counts = cooccurrence.count_pairs(symbols, observed.lengths, self.n_features or 1)
        if not counts.sum():
            raise InputError("X has no pair of adjacent symbols to learn from.")
        return self._match(cooccurrence.frequencies(counts))

    def partial_fit(
        self, X: Any, y: Any = None, lengths: Any = None, *, sample_weight: Any = None, states: Any = None
    ) -> Self:
        """One step of stepwise EM on a mini-batch."""
        if self.learning != "em":
            raise InputError("partial_fit uses EM; for co-occurrences, pass accumulated counts to fit_cooccurrence.")
        return super().partial_fit(X, y, lengths, sample_weight=sample_weight, states=states)

    def fit_cooccurrence(self, omega: Any) -> Self:
        """Estimate the embeddings from co-occurrence probabilities [V, V]. Entry [i, j] is the probability that two
        adjacent symbols are i and j, in this order."""
        given = np.asarray(omega, np.float64)
        if given.ndim != 2 or given.shape[0] != given.shape[1] or (given < 0).any() or not np.isclose(given.sum(), 1):
            raise InputError("omega must be a square matrix of probabilities that sum to one.")
        self._check_settings()
        self._set_n_features(len(given))
        return self._match(torch.from_numpy(given))

    def nearest_symbols(self, symbol: Any, n: int = 10) -> list[tuple[Any, float]]:
        """The symbols whose embeddings are most similar to that of a given symbol, with their cosine similarities."""
        self._check_fitted()
        place = int(self._read([symbol], None).values[0])
        cosines = np.cos(np.radians(self.symbol_angles()[place]))
        order = [int(i) for i in np.argsort(-cosines, kind="stable") if i != place][:n]
        names = getattr(self, "symbols_", range(len(cosines)))
        return [(names[i], float(cosines[i])) for i in order]

    def symbol_angles(self) -> Array:
        """Angles between symbol embeddings, in degrees: [V, V]."""
        unit = self.v_ / np.linalg.norm(self.v_, axis=1, keepdims=True)
        return np.degrees(np.arccos(np.clip(unit @ unit.T, -1, 1)))

    def plot(self, path: str | Path | None = None) -> str:
        """A 2-D plot of the embeddings as SVG, written to `path` if given. More than two dimensions are projected by
        PCA."""
        from trellis.report.embeddings import draw_embeddings

        self._check_fitted()
        names = [str(name) for name in getattr(self, "symbols_", range(len(self.v_)))]
        picture = draw_embeddings({"u": self.u_, "z": self.z_}, {"w": self.w_, "v": self.v_}, names)
        if path is not None:
            write_text(path, picture)
        return picture

    def _match(self, omega: Tensor) -> Self:
        """Fit all restarts at once to the co-occurrence probabilities `omega`, and keep the best."""
        letters = self._letters_to_draw()
        seeds = self._seeds(check_random_state(self.random_state))
        nothing = Observations(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, np.int64))
        module = self._module([cast(DenseParts, self._start(letters, nothing, seed)).vectors for seed in seeds])
        found = cooccurrence.match(
            module.weights(self._roles(self.params)),
            lambda: (module.log_transition().exp(), module.log_emission().exp()),
            omega.to(module.u.device),
            *(self.loss, self.penalty, self.n_epochs, self.optimizer, self.learning_rate),
        )
        best = int(found.best.argmin())
        parts = self._unpack(module, [])[best]
        self.losses_ = found.history[:, best].cpu().numpy()
        parts.given_start = stationary(parts.transition.dense())
        self._adopt(parts)
        return self

    def _unpack(self, module: EmbeddingParams, emissions: Sequence[Emission]) -> list[Parts]:
        """The parts of each restart, with emissions computed from embeddings."""
        tables = module.log_emission().detach().mT
        return super()._unpack(module, [self._categorical(table) for table in tables])

    def _next_emission(self, parts: Parts, counts: Counts) -> Emission:
        """The current emission, whose embeddings are trained with those of the chain."""
        return parts.emission

    def _composed_prior(self) -> Tensor | float:
        return self._pseudocounts()

    def _shape(self, letter: str) -> tuple[int, ...]:
        rows = {"v": self.n_features or 1, "w": self.n_components}
        return (rows[letter], self.emission_dims or self.n_dims) if letter in rows else super()._shape(letter)

    def _check_settings(self) -> None:
        super()._check_settings()
        one_of(tuple(KERNELS), self.emission_kernel or self.kernel, "emission_kernel")
        one_of(tuple(cooccurrence.LOSSES), self.loss, "loss")
