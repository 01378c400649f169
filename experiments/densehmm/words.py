"""A larger DenseHMM, on the words of the Penn Treebank, and an HMM with tables of the same size."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from experiments.densehmm.config import DenseRun
from experiments.results import Figures
from trellis.config import DataConfig
from trellis.corpus import Split, load_corpus
from trellis.estimators import CategoricalHMM, DenseHMM

PRIOR = 1.001  # lower bound on probabilities of the table, so that no word becomes impossible


def sentences(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated tokens, and the lengths of the sentences, including <eos>."""
    bounds = np.asarray(split.sentences)
    return np.asarray(split.tokens), np.diff(bounds)


def build(name: str, config: DenseRun, size: int) -> CategoricalHMM:
    model, train = config.model, config.train
    shared: dict[str, Any] = {
        "n_components": model.states, "n_features": size, "random_state": config.seed, "device": config.device,
        "n_iter": train.iterations, "tol": -np.inf,
    }  # fmt: skip
    if name == "standard":
        return CategoricalHMM(**shared, emissionprob_prior=PRIOR, transmat_prior=PRIOR)
    vectors: dict[str, Any] = {"n_dims": model.length, "optimizer": train.optimizer, "mstep_epochs": train.epochs}
    if name == "em":
        return DenseHMM(**shared, **vectors, learning_rate=train.rate)
    direct: dict[str, Any] = {"n_epochs": train.direct_epochs, "learning_rate": train.direct_rate, "loss": train.loss}
    return DenseHMM(**shared, **vectors, **direct, learning="cooccurrence")


def words(config: DenseRun) -> Figures:
    """Perplexity over every token, and seconds of training."""
    corpus = load_corpus(DataConfig(source="ptb"))
    figures: Figures = {"symbols": len(corpus.vocab)}
    for name in config.train.models.split():
        begun = time.monotonic()
        model = build(name, config, len(corpus.vocab)).fit(*sentences(corpus["train"]))
        figures[f"seconds_{name}"] = time.monotonic() - begun
        for part in ("train", "valid", "test"):
            tokens, lengths = sentences(corpus[part])
            figures[f"{part}_{name}"] = float(np.exp(-model.score(tokens, lengths) / len(tokens)))
    return figures
