"""Models: assemblies of parameters, operators, emissions and inference."""

from trellis.models.arpa import write_arpa
from trellis.models.arpa_read import read_arpa
from trellis.models.base import LanguageModel, SequenceModel
from trellis.models.feedforward import FeedForward
from trellis.models.files import FAMILIES, load_model, read_about, save_model
from trellis.models.hmm import HMM
from trellis.models.ngram import NGram
from trellis.models.rnn import LSTM, RNN

__all__ = [
    "FAMILIES",
    "HMM",
    "LSTM",
    "RNN",
    "FeedForward",
    "LanguageModel",
    "NGram",
    "SequenceModel",
    "load_model",
    "read_about",
    "read_arpa",
    "save_model",
    "write_arpa",
]
