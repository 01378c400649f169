"""A run of the DenseHMM experiments as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DenseModel:
    """n and l of the paper."""

    states: int = 3
    length: int = 1  # of the vectors
    symbols: int = 0  # of synthetic data; 0: as many as states


@dataclass(frozen=True)
class DenseTrain:
    """The paper's reference setting."""

    models: str = "em direct standard fair"  # what is trained, or which kernels factorise a matrix
    runs: int = 10  # in one batch
    repeats: int = 1  # matrices: starts of each, of which the best counts
    params: str = "u z z_start v w"  # what is trained; the rest stays as it was drawn
    optimizer: str = "adam"
    iterations: int = 40  # of EM
    epochs: int = 25  # of each M-step
    rate: float = 0.01  # of the M-step, and of matrices
    direct_epochs: int = 10_000  # co-occurrences, and matrices
    direct_rate: float = 0.001
    loss: str = "frobenius"  # of co-occurrences: frobenius | kl


@dataclass(frozen=True)
class DenseRun:
    """Everything that decides a run."""

    task: str = "sequences"  # sequences | matrices | words
    source: str = "synthetic"  # sequences: synthetic | proteins | tags
    model: DenseModel = DenseModel()
    train: DenseTrain = DenseTrain()
    seed: int = 0
    device: str = "cpu"
