"""DenseHMM from co-occurrences: counting takes time in proportion to the data, a learning step does not."""

from __future__ import annotations

from itertools import product
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.problem import Problem
from benchmarks.race import options
from benchmarks.report import emit
from trellis.families.hmm.parameters.embedding import EmbeddingParams
from trellis.learning.cooccurrence import count_pairs, frequencies, match
from trellis.testing.problems import random_vectors

STATES, LENGTH, STEPS = 16, 8, 10
SYMBOLS = (300, 5000)  # a dense matrix, and a sparse one, whose cost depends on the number of distinct pairs
SEQUENCES = {False: (100, 1000, 10_000, 100_000), True: (100, 1000)}  # of 50 symbols; quick or not


def measure(symbols: int, sequences: int) -> tuple[float, float, int]:
    """Seconds for counting, seconds for one learning step, and the number of distinct pairs."""
    problem = Problem(STATES, sequences, 50, symbols)
    tokens, lengths = problem.tokens.ravel(), np.full(sequences, 50)
    begin = perf_counter()
    counts = count_pairs(tokens, lengths, symbols)
    omega = frequencies(counts)
    counting = perf_counter() - begin
    params = EmbeddingParams(random_vectors(STATES, symbols, LENGTH))
    weights = params.weights(("u", "z", "v", "w"))
    begin = perf_counter()
    match(weights, lambda: (params.log_transition().exp(), params.log_emission().exp()), omega, steps=STEPS)
    return counting, (perf_counter() - begin) / STEPS, counts.nnz


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    measure(SYMBOLS[0], 10)
    for symbols, sequences in product(SYMBOLS, SEQUENCES[chosen.quick]):
        runs = [measure(symbols, sequences) for _ in range(chosen.repeats)]
        counting, learning = (median(run[i] for run in runs) for i in range(2))
        emit(
            bench="cooccurrence", case=f"V={symbols} {sequences}x50", metric="one step", pairs=runs[0][2],
            ours=learning, peer="counting once", peers=counting, ratio=counting / learning, unit="s",
        )  # fmt: skip
