"""Parameterisations: modules that produce the parts of an HMM."""

from trellis.families.hmm.parameters.base import Params, SavedParams, Support, WordParams
from trellis.families.hmm.parameters.dropout import Draw, Dropout
from trellis.families.hmm.parameters.given import PartsParams
from trellis.families.hmm.parameters.lowrank import LowRankParams, LowRankTable
from trellis.families.hmm.parameters.neural import NeuralParams
from trellis.families.hmm.parameters.table import TableParams

__all__ = [
    "Draw",
    "Dropout",
    "LowRankParams",
    "LowRankTable",
    "NeuralParams",
    "Params",
    "PartsParams",
    "SavedParams",
    "Support",
    "TableParams",
    "WordParams",
]
