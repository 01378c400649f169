"""Tables of large HMM language models: emission constraints, and dropout with and without classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from experiments.facts import model_option
from experiments.paper import Figure, Kind, Paper, three_digits
from experiments.results import Figures, Result
from experiments.scaling_hmm_lm.dropout_variance import dropout_variance
from experiments.scaling_hmm_lm.mixtures import MixtureRun, run_mixture
from trellis.config import ModelConfig, RunConfig
from trellis.corpus import Corpus
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.models.base import LanguageModel
from trellis.report.format import finite, percent, perplexity
from trellis.training.fit import BATCHES

DRAWS, KEPT = 64, 0.5  # number of dropout samples, and the fraction of states kept
LIVE: dict[str, Callable[[HMMConfig], int | None]] = {  # the number of states that emit a word, by type of emission
    "full": lambda model: model.states,
    "brown": lambda model: model.states // model.classes,
    "uniform": lambda model: model.states_per_word,
    "cloned": lambda model: None,
}


def is_hmm(model: ModelConfig) -> bool:
    return model.family == "hmm"


def gap(result: Result) -> float:
    return cast(float, result.figures["valid"]) - cast(float, result.figures["train"])


def unpartitioned(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """State dropout with and without a partition, on a batch of the training text."""
    if not isinstance(model, HMM):
        return {}
    batch = next(iter(BATCHES[config.batches.order](corpus["train"], config.batches, config.seed)))
    return dict(dropout_variance(model, batch.to(model.device), KEPT, DRAWS, config.seed))


NOISE: dict[str, tuple[str, Callable[[float], str]]] = {  # heading and format, for states sampled by class and anywhere
    "loss": ("loss", finite("{:.3f}")),
    "loss_deviation": ("its sd", finite("{:.4f}")),
    "gradient_noise": ("gradient noise", three_digits),
    "impossible": ("impossible draws", percent),
}

PAPER = Paper(
    kinds={"mixture": Kind(MixtureRun, run_mixture)},
    figures={
        "gap": Figure("valid - train", perplexity, gap),
        **{
            f"{name}_{drawn.replace(' ', '_')}": Figure(f"{heading}, {drawn}", write)
            for name, (heading, write) in NOISE.items()
            for drawn in ("by class", "anywhere")
        },
    },
    facts={
        "states": model_option("states", is_hmm),
        "factored": model_option("factored", is_hmm),
        "live": lambda config: LIVE[config.model.emission](config.model),
    },
    analyses={"unpartitioned": unpartitioned},
)
