"""scikit-learn estimators: drop-in replacements for hmmlearn's hidden Markov models, and related models."""

from trellis.estimators.categorical import CategoricalHMM as CategoricalHMM
from trellis.estimators.dense import DenseHMM as DenseHMM, GaussianDenseHMM as GaussianDenseHMM
from trellis.estimators.displays import (
    plot_posterior as plot_posterior,
    plot_states as plot_states,
    plot_transitions as plot_transitions,
)
from trellis.estimators.factorial import FactorialHMM as FactorialHMM
from trellis.estimators.gaussian import GaussianHMM as GaussianHMM
from trellis.estimators.lds import LDSVectors as LDSVectors
from trellis.estimators.mixture import GMMHMM as GMMHMM
from trellis.estimators.monitor import ConvergenceMonitor as ConvergenceMonitor
from trellis.estimators.multinomial import MultinomialHMM as MultinomialHMM
from trellis.estimators.poisson import PoissonHMM as PoissonHMM
from trellis.estimators.selection import Selection as Selection, select_states as select_states
from trellis.estimators.streaming import FilterState as FilterState, Forecast as Forecast
from trellis.estimators.topology import ergodic as ergodic, first_state as first_state, left_right as left_right
from trellis.estimators.variational import (
    VariationalCategoricalHMM as VariationalCategoricalHMM,
    VariationalGaussianHMM as VariationalGaussianHMM,
)
