"""Models: assemblies of parameters, operators, emissions and inference."""

from trellis.models.arpa import write_arpa
from trellis.models.arpa_read import read_arpa
from trellis.models.base import LanguageModel, SequenceModel
from trellis.models.feedforward import FeedForward
from trellis.models.fhmm import FHMM
from trellis.models.files import FAMILIES, load, load_model, read_about, save_model
from trellis.models.hmm import HMM
from trellis.models.lds import LDS
from trellis.models.ngram import NGram
from trellis.models.rnn import LSTM, RNN
from trellis.models.tag_hmm import TagHMM

__all__ = [
    "FAMILIES",
    "FHMM",
    "HMM",
    "LDS",
    "LSTM",
    "RNN",
    "FeedForward",
    "LanguageModel",
    "NGram",
    "SequenceModel",
    "TagHMM",
    "load",
    "load_model",
    "read_about",
    "read_arpa",
    "save_model",
    "write_arpa",
]
