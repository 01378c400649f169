"""The scikit-learn face of the library: hidden Markov models that hmmlearn's users can adopt unchanged, and kin."""

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
