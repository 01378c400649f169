"""The DenseHMM experiments: all models of a cell are trained in one batch and evaluated in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.densehmm.config import DenseRun
from experiments.densehmm.data import Split, Text, load
from experiments.densehmm.metrics import (
    Array,
    Probabilities,
    analytic,
    counted,
    fair_states,
    mean_absolute_deviation,
    normalised_nll,
    sampled,
)
from experiments.densehmm.words import words
from experiments.paper import Job, Outcome
from experiments.results import Figures
from trellis.estimators import CategoricalHMM
from trellis.families.hmm.parameters.embedding import EmbeddingParams, stack_counts
from trellis.families.hmm.parameters.kernels import KERNELS, log_probabilities
from trellis.inference import discrete
from trellis.inference.stationary import stationary
from trellis.learning import cooccurrence
from trellis.learning.descent import minimise
from trellis.options import choose
from trellis.parts import Prior
from trellis.testing.problems import random_vectors
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

CURVE = (100, 1000, 10_000)  # steps after which the error of a factorisation is recorded


def new_vectors(config: DenseRun, size: int) -> EmbeddingParams:
    """Standard normal vectors of all runs, stacked."""
    model, train = config.model, config.train
    return EmbeddingParams(random_vectors(model.states, size, model.length, seed=config.seed, runs=train.runs))


def probabilities(params: EmbeddingParams, start: Tensor) -> list[Probabilities]:
    """The probabilities of each run, as arrays."""
    parts = start, params.log_transition().exp(), params.log_emission().exp()
    return [Probabilities(*(part[run].detach().numpy() for part in parts)) for run in range(len(start))]


def chain(model: Sequence[Tensor], text: Text) -> tuple[Belief, Dense, Potentials, Tensor]:
    """The inputs of inference: start [K], transition [K, K], emission [K, V] and sequences."""
    start, transition, emission = model
    rows, lengths = text.rows()
    return Belief(start.expand(len(rows), -1)), Dense(transition), Potentials(emission.T.log(), rows), lengths


def dense_em(config: DenseRun, splits: Sequence[Split]) -> list[Probabilities]:
    """EM with gradient M-steps, batched over all runs."""
    train, params = config.train, new_vectors(config, splits[0].size)
    for _ in range(train.iterations):
        with torch.no_grad():
            models = zip(
                params.log_start().exp(), params.log_transition().exp(), params.log_emission().exp(), strict=True
            )
            found = [
                discrete.counts(*chain(model, split.train))[0] for model, split in zip(models, splits, strict=True)
            ]
        descent = train.epochs, train.optimizer, train.rate, train.params.split()
        params.maximise(stack_counts(found), Prior(), *descent)
    return probabilities(params, params.log_start().exp())


def dense_direct(config: DenseRun, splits: Sequence[Split]) -> list[Probabilities]:
    """Gradient descent on the co-occurrences of the training sequences, batched over all runs."""
    train, params = config.train, new_vectors(config, splits[0].size)
    omega = torch.from_numpy(np.stack([counted(*split.train, split.size) for split in splits]))
    cooccurrence.match(
        params.weights(train.params.replace("z_start", "").split()),
        lambda: (params.log_transition().exp(), params.log_emission().exp()),
        omega,
        train.loss,
        steps=train.direct_epochs,
        optimizer=train.optimizer,
        lr=train.direct_rate,
    )
    return probabilities(params, stationary(params.log_transition().exp()))


def standard(config: DenseRun, splits: Sequence[Split], states: int | None = None) -> list[Probabilities]:
    """Baum-Welch for an HMM with tables."""
    found = []
    for run, split in enumerate(splits):
        model = CategoricalHMM(
            states or config.model.states,
            n_features=split.size,
            random_state=config.seed + run,
            n_iter=config.train.iterations,
            tol=-np.inf,
        ).fit(*split.train)
        found.append(Probabilities(model.startprob_, model.transmat_, model.emissionprob_))
    return found


def fair(config: DenseRun, splits: Sequence[Split]) -> list[Probabilities]:
    """An HMM with tables that has about as many degrees of freedom as the vectors."""
    return standard(config, splits, fair_states(config.model.states, splits[0].size, config.model.length))


MODELS: dict[str, Callable[[DenseRun, Sequence[Split]], list[Probabilities]]] = {
    "em": dense_em,
    "direct": dense_direct,
    "standard": standard,
    "fair": fair,
}


def measure(model: Probabilities, split: Split, seed: int) -> dict[str, float]:
    """The co-occurrence error, sampled (as long as the test set) and analytic, and the likelihood of the test set."""
    parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in model]
    log_likelihood = float(discrete.log_likelihood(*chain(parts, split.test)).sum())
    return {
        "mad": mean_absolute_deviation(sampled(model, split.test.lengths, seed), split.truth),
        "analytic": mean_absolute_deviation(analytic(model), split.truth),
        "nll": normalised_nll(log_likelihood, split.test.lengths),
    }


def summary(name: str, values: Sequence[float] | Array) -> Figures:
    """Median and quartiles."""
    low, middle, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf"))
    return {f"{name}_25": low, name: middle, f"{name}_75": high}


def sequences(config: DenseRun) -> Figures:
    """Figures 4 to 6: every model, on the sequences of each run."""
    seeds = range(config.seed, config.seed + config.train.runs)
    splits = [load(config.source, config.model.states, config.model.symbols, seed) for seed in seeds]
    figures: Figures = {"symbols": splits[0].size}
    for name in config.train.models.split():
        begun = time.monotonic()
        models = MODELS[name](config, splits)
        figures[f"seconds_{name}"] = time.monotonic() - begun
        measured = [measure(*one) for one in zip(models, splits, seeds, strict=True)]
        for metric in measured[0]:
            figures |= summary(f"{metric}_{name}", [one[metric] for one in measured])
    return figures


def matrices(config: DenseRun) -> Figures:
    """Table 1: the error with which kernels of short vectors fit Dirichlet matrices, relative to the matrix norm."""
    states, train = config.model.states, config.train
    target = torch.distributions.Dirichlet(torch.full((states, states), 0.1, dtype=torch.float64))
    torch.manual_seed(config.seed)
    wanted = target.sample((train.runs, 1))[:, :, 0] if states == 1 else target.sample((train.runs,))
    wanted = wanted.unsqueeze(1)  # [runs, 1, n, n]
    figures: Figures = {}
    for name in train.models.split():
        vectors = random_vectors(states, 1, config.model.length, seed=config.seed + 1, runs=train.runs * train.repeats)
        u, z = (vectors[role].unflatten(0, (train.runs, train.repeats)).requires_grad_() for role in "uz")

        def error(name: str = name, u: Tensor = u, z: Tensor = z) -> Tensor:
            found = log_probabilities(KERNELS[name], z, u).exp()
            return ((found - wanted).square().sum((-2, -1)) / wanted.square().sum((-2, -1))).sqrt()

        result = minimise([u, z], error, train.direct_epochs, train.optimizer, train.rate)
        figures |= summary(name, result.best.amin(1).numpy())
        lowest = result.history.cummin(0).values.amin(2)  # [steps, runs]
        figures |= {f"{name}_after_{step}": float(lowest[step].median()) for step in CURVE if step < len(lowest)}
    return figures


TASKS: dict[str, Callable[[DenseRun], Figures]] = {"sequences": sequences, "matrices": matrices, "words": words}


def run_cell(job: Job) -> Outcome:
    """Train and evaluate the models of a cell."""
    config: DenseRun = job.config
    task = choose(TASKS, config.task, "task")
    if config.task != "words":
        torch.set_num_threads(1)  # the problems are too small for threads
    return Outcome(config.source, task(config))
