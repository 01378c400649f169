"""Trellis: latent-state models of discrete sequences, such as hidden Markov models."""

import importlib
import os
import sys

if "torch" in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    importlib.import_module("trellis.kernels.team").shorten_waits()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads sleep between operations instead of spinning
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors get huge pages, which are faster to allocate

from trellis.errors import TrellisError

TYPE_CHECKING = False  # as in `typing`, which takes most of the time of an otherwise empty import
if TYPE_CHECKING:
    from typing import Any

    from trellis import constraints as constraints, hmm as hmm, vhmm as vhmm
    from trellis.api import (
        compare as compare,
        evaluate as evaluate,
        load as load,
        read_corpus as read_corpus,
        train as train,
    )
    from trellis.config import RunConfig as RunConfig
    from trellis.corpus import Corpus as Corpus, Vocabulary as Vocabulary
    from trellis.estimators import (
        GMMHMM as GMMHMM,
        CategoricalHMM as CategoricalHMM,
        DenseHMM as DenseHMM,
        FactorialHMM as FactorialHMM,
        FilterState as FilterState,
        Forecast as Forecast,
        GaussianDenseHMM as GaussianDenseHMM,
        GaussianHMM as GaussianHMM,
        LDSVectors as LDSVectors,
        MultinomialHMM as MultinomialHMM,
        PoissonHMM as PoissonHMM,
        Selection as Selection,
        VariationalCategoricalHMM as VariationalCategoricalHMM,
        VariationalGaussianHMM as VariationalGaussianHMM,
        ergodic as ergodic,
        first_state as first_state,
        left_right as left_right,
        plot_posterior as plot_posterior,
        plot_states as plot_states,
        plot_transitions as plot_transitions,
        select_states as select_states,
    )
    from trellis.families.crf.tagger import CRFTagger as CRFTagger
    from trellis.families.factorial.model import FHMM as FHMM
    from trellis.families.hmm.model import HMM as HMM
    from trellis.families.hmm_tagger.model import HMMTagger as HMMTagger
    from trellis.families.lds.model import LDS as LDS
    from trellis.families.neural.feedforward import FeedForward as FeedForward
    from trellis.families.neural.rnn import LSTM as LSTM, RNN as RNN
    from trellis.families.ngram.model import NGram as NGram
    from trellis.families.pcfg.model import PCFG as PCFG
    from trellis.models.guide import guide as guide
    from trellis.registry import Family as Family
    from trellis.report.figures import (
        figure_style as figure_style,
        plot_comparison as plot_comparison,
        plot_training as plot_training,
        plot_trellis as plot_trellis,
    )
    from trellis.tasks.scores import Scores as Scores
    from trellis.training.callbacks import Callback as Callback, TensorBoard as TensorBoard
    from trellis.training.run import Trained as Trained

__version__ = "0.1.0"

_HOMES = {
    "api": "compare evaluate load read_corpus train",
    "config": "RunConfig",
    "corpus": "Corpus Vocabulary",
    "estimators": "CategoricalHMM DenseHMM FactorialHMM FilterState Forecast GaussianDenseHMM GaussianHMM GMMHMM "
    "LDSVectors MultinomialHMM PoissonHMM Selection VariationalCategoricalHMM VariationalGaussianHMM ergodic "
    "first_state left_right plot_posterior plot_states plot_transitions select_states",
    "families.crf.tagger": "CRFTagger",
    "families.factorial.model": "FHMM",
    "families.hmm.model": "HMM",
    "families.hmm_tagger.model": "HMMTagger",
    "families.lds.model": "LDS",
    "families.neural.feedforward": "FeedForward",
    "families.neural.rnn": "LSTM RNN",
    "families.ngram.model": "NGram",
    "families.pcfg.model": "PCFG",
    "models.guide": "guide",
    "registry": "Family",
    "report.figures": "figure_style plot_comparison plot_training plot_trellis",
    "tasks.scores": "Scores",
    "training.callbacks": "Callback TensorBoard",
    "training.run": "Trained",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME, "TrellisError", "constraints"]


def __getattr__(name: str) -> "Any":
    """Import public names on first use."""
    if name in ("constraints", "hmm", "vhmm"):
        return importlib.import_module(f"trellis.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trellis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trellis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
