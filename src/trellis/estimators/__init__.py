"""scikit-learn estimators: drop-in replacements for hmmlearn's hidden Markov models, and related models."""

from trellis.estimators.categorical import CategoricalHMM
from trellis.estimators.dense import DenseHMM, GaussianDenseHMM
from trellis.estimators.factorial import FactorialHMM
from trellis.estimators.gaussian import GaussianHMM
from trellis.estimators.lds import LDSVectors
from trellis.estimators.monitor import ConvergenceMonitor
from trellis.estimators.poisson import PoissonHMM

__all__ = [
    "CategoricalHMM",
    "ConvergenceMonitor",
    "DenseHMM",
    "FactorialHMM",
    "GaussianDenseHMM",
    "GaussianHMM",
    "LDSVectors",
    "PoissonHMM",
]
