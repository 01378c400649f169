"""Parameterization: modules that give the parts of an HMM."""

from trellis.params.base import Params, SavedParams, Support, WordParams
from trellis.params.dropout import Draw, Dropout
from trellis.params.given import PartsParams
from trellis.params.lowrank import LowRankParams, LowRankTable
from trellis.params.neural import NeuralParams
from trellis.params.table import TableParams

KINDS: tuple[type[WordParams], ...] = (TableParams, NeuralParams, LowRankParams, LowRankTable)
PARAMS: dict[str, type[WordParams]] = {kind.kind: kind for kind in KINDS}

__all__ = [
    "PARAMS",
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
