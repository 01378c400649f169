"""The classes of `hmmlearn.vhmm`: hidden Markov models trained by variational inference."""

from trellis.estimators.variational import (
    VariationalCategoricalHMM as VariationalCategoricalHMM,
    VariationalGaussianHMM as VariationalGaussianHMM,
)

__all__ = ["VariationalCategoricalHMM", "VariationalGaussianHMM"]
