"""Trellis: latent-state models of discrete sequences, such as hidden Markov models."""

import importlib
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads sleep between operations instead of spinning
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors get huge pages, which are faster to allocate

from trellis.errors import TrellisError

TYPE_CHECKING = False  # as in `typing`, which takes most of the time of an otherwise empty import
if TYPE_CHECKING:
    from typing import Any

    from trellis.api import evaluate as evaluate, load as load, read_corpus as read_corpus, train as train
    from trellis.config import RunConfig as RunConfig
    from trellis.corpus import Corpus as Corpus, Vocabulary as Vocabulary
    from trellis.estimators import (
        CategoricalHMM as CategoricalHMM,
        DenseHMM as DenseHMM,
        FactorialHMM as FactorialHMM,
        GaussianDenseHMM as GaussianDenseHMM,
        GaussianHMM as GaussianHMM,
        LDSVectors as LDSVectors,
        PoissonHMM as PoissonHMM,
    )
    from trellis.families.crf.tagger import CRFTagger as CRFTagger
    from trellis.families.factorial.model import FHMM as FHMM
    from trellis.families.hmm.model import HMM as HMM
    from trellis.families.hmm_tagger.model import HMMTagger as HMMTagger
    from trellis.families.lds.model import LDS as LDS
    from trellis.families.neural.feedforward import FeedForward as FeedForward
    from trellis.families.neural.rnn import LSTM as LSTM, RNN as RNN
    from trellis.families.ngram.model import NGram as NGram
    from trellis.registry import Family as Family
    from trellis.tasks.scores import Scores as Scores
    from trellis.training.callbacks import Callback as Callback, TensorBoard as TensorBoard
    from trellis.training.run import Trained as Trained

__version__ = "0.1.0"

_HOMES = {
    "api": "evaluate load read_corpus train",
    "config": "RunConfig",
    "corpus": "Corpus Vocabulary",
    "estimators": "CategoricalHMM DenseHMM FactorialHMM GaussianDenseHMM GaussianHMM LDSVectors PoissonHMM",
    "families.crf.tagger": "CRFTagger",
    "families.factorial.model": "FHMM",
    "families.hmm.model": "HMM",
    "families.hmm_tagger.model": "HMMTagger",
    "families.lds.model": "LDS",
    "families.neural.feedforward": "FeedForward",
    "families.neural.rnn": "LSTM RNN",
    "families.ngram.model": "NGram",
    "registry": "Family",
    "tasks.scores": "Scores",
    "training.callbacks": "Callback TensorBoard",
    "training.run": "Trained",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME, "TrellisError"]


def __getattr__(name: str) -> "Any":
    """Import public names on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'trellis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trellis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
