"""Parameterisations: modules that produce the parts of an HMM."""

from trellis.families.hmm.parameters.base import (
    Params as Params,
    SavedParams as SavedParams,
    Support as Support,
    WordParams as WordParams,
)
from trellis.families.hmm.parameters.dropout import Draw as Draw, Dropout as Dropout
from trellis.families.hmm.parameters.given import PartsParams as PartsParams
from trellis.families.hmm.parameters.lowrank import LowRankParams as LowRankParams, LowRankTable as LowRankTable
from trellis.families.hmm.parameters.neural import NeuralParams as NeuralParams
from trellis.families.hmm.parameters.table import TableParams as TableParams
