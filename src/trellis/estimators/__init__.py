"""The scikit-learn face of the library: hidden Markov models that hmmlearn's users can adopt unchanged."""

from trellis.estimators.categorical import CategoricalHMM
from trellis.estimators.dense import DenseHMM, GaussianDenseHMM
from trellis.estimators.gaussian import GaussianHMM
from trellis.estimators.monitor import ConvergenceMonitor
from trellis.estimators.poisson import PoissonHMM

__all__ = ["CategoricalHMM", "ConvergenceMonitor", "DenseHMM", "GaussianDenseHMM", "GaussianHMM", "PoissonHMM"]
