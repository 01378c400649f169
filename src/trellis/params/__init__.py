"""Parameterization: modules that build operators and emissions."""

from trellis.params.base import Params, Support
from trellis.params.dropout import Dropout, Dropped
from trellis.params.lowrank import LowRankParams, LowRankTable
from trellis.params.neural import NeuralParams
from trellis.params.table import TableParams

PARAMS: dict[str, type[Params]] = {kind.kind: kind for kind in (TableParams, NeuralParams, LowRankParams, LowRankTable)}

__all__ = [
    "PARAMS",
    "Dropout",
    "Dropped",
    "LowRankParams",
    "LowRankTable",
    "NeuralParams",
    "Params",
    "Support",
    "TableParams",
]
