"""A factorial HMM for arrays of symbols, in the manner of scikit-learn: fit, transform, predict, score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch

from trellis.config import TrainConfig
from trellis.corpus import Split, Vocabulary
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.learning.variational_em import StepwiseVariationalLearner, VariationalEMLearner
from trellis.models.fhmm import FHMM, sentences
from trellis.tasks.lm import evaluate

LEARNERS = {"em": VariationalEMLearner, "stepwise-em": StepwiseVariationalLearner}
BATCH_TOKENS = 8192


@dataclass
class FactorialHMM:
    """X [n] or [n, 1] are symbols 0, 1, 2, ... of sequences one after the other, `lengths` says how long each is."""

    sizes: tuple[int, ...] = (10, 10)  # states of each layer
    bound: str = "tilted"  # or "jensen"
    learner: str = "em"  # or "stepwise-em", for much data
    epochs: int = 20
    lr: float = 0.05  # stepwise-em
    weight_decay: float = 1e-4
    sweeps: int = 4
    random_state: int = 0

    def fit(self, X: Any, lengths: Sequence[int] | None = None) -> Self:
        """Learn from sequences; `bounds_` are the bounds on their log-likelihood, epoch by epoch."""
        split = sequences(X, lengths)
        if self.learner not in LEARNERS:
            raise TrellisError(f"learner is {self.learner!r}; use {' or '.join(LEARNERS)}.")
        counts = np.bincount(split.tokens)
        vocab = Vocabulary([str(symbol) for symbol in range(len(counts))], counts.tolist())
        self.model_ = FHMM.new(vocab, tuple(self.sizes), self.bound, seed=self.random_state)
        config = TrainConfig(lr=self.lr, weight_decay=self.weight_decay, sweeps=self.sweeps)
        learner = LEARNERS[self.learner](self.model_, config)
        batches = Sentences(split, BATCH_TOKENS, self.random_state)
        self.bounds_: list[float] = []
        for _ in range(self.epochs):
            self.bounds_.append(sum(float(learner.step(batch).log_likelihood) for batch in batches))
            learner.end_epoch()
        self.model_.eval()
        return self

    def transform(self, X: Any, lengths: Sequence[int] | None = None) -> np.ndarray:
        """The posterior of every layer's state, side by side: [n, sum of sizes]."""
        return self.each(X, lengths, lambda batch: self.model_.posterior(batch.tokens, batch.lengths).probs)

    def predict(self, X: Any, lengths: Sequence[int] | None = None) -> np.ndarray:
        """The most probable states of every layer: [n, layers]."""
        return self.each(X, lengths, lambda batch: self.model_.best_path(batch.tokens, batch.lengths)[0])

    def score(self, X: Any, lengths: Sequence[int] | None = None) -> float:
        """log p(X), exact."""
        split = self.known(X, lengths)
        return evaluate(self.model_, Sentences(split, BATCH_TOKENS, shuffle=False)).log_likelihood

    def each(self, X: Any, lengths: Sequence[int] | None, answer: Any) -> np.ndarray:
        """What `answer` gives for the batches [B, T, ...], in the order of X: [n, ...]."""
        split = self.known(X, lengths)
        found = []
        for first, end in pairwise(split.sentences.tolist()):
            row = torch.from_numpy(split.tokens[first:end].astype(np.int64))
            found.append(answer(sentences(row[None], None))[0].numpy())
        return np.concatenate(found)

    def known(self, X: Any, lengths: Sequence[int] | None) -> Split:
        """Sequences of symbols that the model was fitted with."""
        if not hasattr(self, "model_"):
            raise TrellisError("This FactorialHMM has not been fitted yet; call fit first.")
        split = sequences(X, lengths)
        if split.tokens.max() >= len(self.model_.vocab):
            raise TrellisError(
                f"X has the symbol {split.tokens.max()}, but the model was fitted with symbols below "
                f"{len(self.model_.vocab)}; fit it with all symbols."
            )
        return split


def sequences(X: Any, lengths: Sequence[int] | None) -> Split:
    """Symbols and lengths, checked."""
    tokens = np.asarray(X).reshape(-1)
    if not tokens.size or not np.issubdtype(tokens.dtype, np.integer) or tokens.min() < 0:
        raise TrellisError("X must be integers from 0 on, at least one.")
    ends = np.cumsum([0, *(lengths if lengths is not None else [tokens.size])])
    if ends[-1] != tokens.size or (np.diff(ends) < 1).any():
        raise TrellisError(f"lengths must be positive and add up to the {tokens.size} symbols of X, not to {ends[-1]}.")
    return Split(tokens.astype(np.int32), ends, ends[[0, -1]])
