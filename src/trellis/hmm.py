"""Replacements for the classes of `hmmlearn.hmm`: to move a script to Trellis, import them from `trellis.hmm`."""

from trellis.estimators.base import BaseHMM as BaseHMM
from trellis.estimators.categorical import CategoricalHMM as CategoricalHMM
from trellis.estimators.gaussian import GaussianHMM as GaussianHMM
from trellis.estimators.mixture import GMMHMM as GMMHMM
from trellis.estimators.monitor import ConvergenceMonitor as ConvergenceMonitor
from trellis.estimators.multinomial import MultinomialHMM as MultinomialHMM
from trellis.estimators.poisson import PoissonHMM as PoissonHMM

__all__ = ["GMMHMM", "BaseHMM", "CategoricalHMM", "ConvergenceMonitor", "GaussianHMM", "MultinomialHMM", "PoissonHMM"]
