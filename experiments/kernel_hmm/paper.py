"""Tables of HMMs with low-rank transitions: number of features, width of the band, and rank."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from experiments.facts import model_option
from experiments.kernel_hmm.pictures import PICTURES
from experiments.paper import Figure, Paper
from experiments.results import Figures
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.models.base import LanguageModel
from trellis.report.format import whole

LARGEST_RANKED = {"cpu": 4096, "cuda": 16384}  # states
TOLERANCE = 1e-5  # of singular values, relative to the largest


def is_low_rank(model: HMMConfig) -> bool:
    return model.params.startswith("lowrank")


def transition(config: RunConfig) -> str:
    """The kind of transition, with how it is narrowed."""
    model = cast(HMMConfig, config.model)
    return "softmax" if not is_low_rank(model) else "low rank and band" if model.band else "low rank"


@torch.no_grad()
def rank(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """The numerical rank of the transition matrix, if the model is small enough for the machine."""
    if not isinstance(model, HMM) or model.num_states > LARGEST_RANKED[model.device.type]:
        return {}
    return {"transition_rank": rank_of(model.parts().transition.dense().double())}


def rank_of(matrix: Tensor) -> int:
    """The number of singular values above TOLERANCE times the largest. In float64, the eigenvalues of the product with
    the transpose tell them apart, and are found faster."""
    squares = torch.linalg.eigvalsh(matrix @ matrix.T)
    return int((squares > TOLERANCE**2 * squares[-1]).sum())


PAPER = Paper(
    figures={"transition_rank": Figure("rank", whole)},
    facts={
        "features": model_option("features", is_low_rank),
        "map": model_option("feature_map", is_low_rank),
        "transition": transition,
    },
    analyses={"rank": rank},
    pictures=PICTURES,
)
