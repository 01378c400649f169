"""The configuration of a DenseHMM experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DenseModel:
    """n and l of the paper."""

    states: int = 3
    length: int = 1  # of the vectors
    symbols: int = 0  # symbols of synthetic data; 0: as many as states


@dataclass(frozen=True)
class DenseTrain:
    """The paper's reference setting."""

    models: str = "em direct standard fair"  # the models to train, or the kernels that factorise a matrix
    runs: int = 10  # in one batch
    repeats: int = 1  # matrices: random starts, of which the best is used
    params: str = "u z z_start v w"  # the vectors to train; the others keep their initial values
    optimizer: str = "adam"
    iterations: int = 40  # of EM
    epochs: int = 25  # of each M-step
    rate: float = 0.01  # of the M-step, and of matrices
    direct_epochs: int = 10_000  # co-occurrences, and matrices
    direct_rate: float = 0.001
    loss: str = "frobenius"  # of co-occurrences: frobenius | kl


@dataclass(frozen=True)
class DenseRun:
    """All options of a run."""

    task: str = "sequences"  # sequences | matrices | words
    source: str = "synthetic"  # sequences: synthetic | proteins | tags
    model: DenseModel = DenseModel()
    train: DenseTrain = DenseTrain()
    seed: int = 0
    device: str = "cpu"
