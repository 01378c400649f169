"""What is measured on a trained model besides its perplexity: each analysis gives named figures."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.dropout_variance import dropout_variance
from trellis.config import RunConfig
from trellis.corpus import Corpus, Streams
from trellis.errors import TrellisError
from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.mean_field import infer
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import measure_states
from trellis.models.base import LanguageModel
from trellis.registry import resolve
from trellis.tasks.lm import READINGS, evaluate
from trellis.training.fit import BATCHES
from trellis.types import Batch

CONTEXTS, LANES, WINDOW = 1000, 16, 32  # of the check that probabilities sum to one
STEPS = 3  # of training while memory is watched
SWEEPS = 30  # until a mean field has converged
LARGEST_RANKED = 4096  # states
DRAWS, KEPT = 64, 0.5  # random restrictions of the states, and the share that each keeps

Figures = dict[str, float | None]
Analysis = Callable[[LanguageModel, RunConfig, Corpus], Figures]


def states(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """Occupancy and entropies, on the valid text."""
    if not isinstance(model, HMM):
        return {}
    return dict(measure_states(model, READINGS[config.batches.order](corpus["valid"]))._asdict())


def normalisation(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """Whether next-word probabilities sum to one, in contexts of the valid text."""
    batches = Streams(corpus["valid"], LANES, WINDOW)
    return dict(check_normalisation(model, batches, CONTEXTS)._asdict())


class Normalisation(NamedTuple):
    """Whether next-word probabilities sum to one."""

    deviation: float  # the largest |sum over x of p(x | context) - 1|
    contexts: int


@torch.no_grad()
def check_normalisation(model: LanguageModel, batches: Iterable[Batch], contexts: int = 1000) -> Normalisation:
    """Sum p(x | context) over the vocabulary where each row of each batch ends, until enough contexts were seen."""
    state: Any = None
    sums: list[Tensor] = []
    for batch in batches:
        batch = batch.to(model.device)
        state = model.start(len(batch.tokens)) if not sums or len(sums[-1]) < len(batch.tokens) else state
        _, state = model.score(batch.tokens, model.reset(state, batch.fresh), batch.lengths)
        sums.append(model.forecast(state).double().exp().sum(-1))
        if sum(map(len, sums)) >= contexts:
            break
    if not sums:
        raise TrellisError("There is nothing to measure: the text has no tokens.")
    totals = torch.cat(sums)
    return Normalisation(float((totals - 1).abs().max()), len(totals))


@torch.no_grad()
def rank(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """The numerical rank of the transitions, of models small enough to write them out."""
    if not isinstance(model, HMM) or model.num_states > LARGEST_RANKED:
        return {}
    return {"transition_rank": numerical_rank(model.parts().transition.dense().double())}


def numerical_rank(matrix: Tensor, tolerance: float = 1e-5) -> int:
    """How many singular values are above a share of the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum())


def unpartitioned(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """State dropout with and without a partition, on a batch of the training text."""
    if not isinstance(model, HMM):
        return {}
    batch = next(iter(BATCHES[config.batches.order](corpus["train"], config.batches, config.seed)))
    return dict(dropout_variance(model, batch.to(model.device), KEPT, DRAWS, config.seed))


def memory(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """The most bytes that steps of training such a model need on a GPU, over what is there already."""
    if not isinstance(model, HMM) or model.device.type != "cuda":
        return {}
    support = deepcopy(model.params.partition or model.params.support)
    support = None if support is None else support.cpu()
    gc.collect()  # a learner and its captured graph refer to each other
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = HMM.build(model.vocab, config.model, model.carry, config.seed, support).to(model.device)
    batches = BATCHES[config.batches.order](corpus["train"], config.batches, config.seed)
    torch.cuda.reset_peak_memory_stats()
    learner = resolve(config.family.learners[config.train.learner])(
        model, config.train, config.train.total_steps(len(batches))
    )
    for batch in islice(batches, STEPS):
        learner.step(batch)
    torch.cuda.synchronize()
    return {"memory": float(torch.cuda.max_memory_allocated() - before)}


def bounds(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """How far the bounds of a factorial HMM, both converged, are beneath log p: nats per token of the valid text.

    Constants added to the columns of theta change Jensen's bound alone: it is measured as trained and with each layer
    normalised on its own, and the better counts."""
    if not isinstance(model, FHMM):
        return {}
    batches = list(READINGS["sentences"](corpus["valid"]))
    exact, emission, chains = evaluate(model, batches), model.emission(), model.chains()
    alone = (emission.bias.log_softmax(0).unsqueeze(-1) + emission.theta).logsumexp(0)
    centred = LogLinear(emission.theta - alone, emission.bias, emission.sizes)

    def gap(bound: str, given: LogLinear) -> float:
        found = (infer(chains, given, batch.tokens, batch.lengths, SWEEPS, bound).bound.sum() for batch in batches)
        return (exact.log_likelihood - sum(map(float, found))) / exact.tokens

    tried = [gap("jensen", given) for given in (emission, centred)]  # large constants overflow, and are not counted
    tilted, jensen = gap("tilted", emission), min(filter(math.isfinite, tried), default=math.inf)
    return {"tilted_gap": tilted, "jensen_gap": jensen, "tighter": jensen - tilted}


ANALYSES: dict[str, Analysis] = {
    "states": states,
    "normalisation": normalisation,
    "rank": rank,
    "unpartitioned": unpartitioned,
    "memory": memory,
    "bounds": bounds,
}
USUAL = "states", "normalisation", "memory"


def analyse(
    model: LanguageModel, config: RunConfig, corpus: Corpus, more: Iterable[str] = ()
) -> tuple[Figures, dict[str, str]]:
    """The figures of the usual analyses and of those asked for, and the errors of those that failed: a training is not
    lost because something could not be measured on it."""
    figures: Figures = {}
    errors: dict[str, str] = {}
    for name in (name for name in ANALYSES if name in {*USUAL, *more}):
        try:
            figures |= ANALYSES[name](model, config, corpus)
        except Exception as error:
            errors[name] = describe(error)
    return figures, errors


def describe(error: Exception) -> str:
    """An error in one line."""
    reason = " ".join(str(error).split())
    return reason if type(error).__name__ == "TrellisError" else f"{type(error).__name__}: {reason}"
