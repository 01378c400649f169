"""Models: assemblies of parameters, operators, emissions and inference."""

from trellis.models.base import LanguageModel, SequenceModel
from trellis.models.feedforward import FeedForward
from trellis.models.files import FAMILIES, load_model, read_about, save_model
from trellis.models.hmm import HMM
from trellis.models.ngram import Bigram, Unigram
from trellis.models.rnn import LSTM, RNN

__all__ = [
    "FAMILIES",
    "HMM",
    "LSTM",
    "RNN",
    "Bigram",
    "FeedForward",
    "LanguageModel",
    "SequenceModel",
    "Unigram",
    "load_model",
    "read_about",
    "save_model",
]
