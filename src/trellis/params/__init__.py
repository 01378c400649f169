"""Parameterization: modules that build operators and emissions."""

from trellis.params.base import Params, Support, WordParams
from trellis.params.dropout import Draw, Dropout
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
    "Support",
    "TableParams",
    "WordParams",
]
