"""Analyses of a trained model besides its perplexity; each returns named figures."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.paper import Analysis
from experiments.results import Figures
from trellis.config import RunConfig
from trellis.corpus import Corpus, Streams
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import measure_states
from trellis.models.base import LanguageModel
from trellis.registry import resolve
from trellis.tasks.lm import READINGS
from trellis.training.fit import BATCHES
from trellis.types import Batch

CONTEXTS, LANES, WINDOW = 1000, 16, 32  # of the check that probabilities sum to one
STEPS = 3  # of training while memory is watched


def states(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """Occupancy and entropies on the validation set."""
    if not isinstance(model, HMM):
        return {}
    return dict(measure_states(model, READINGS[config.batches.order](corpus["valid"]))._asdict())


def normalisation(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """Whether next-word probabilities sum to one, in contexts from the validation set."""
    batches = Streams(corpus["valid"], LANES, WINDOW)
    return dict(check_normalisation(model, batches, CONTEXTS)._asdict())


class Normalisation(NamedTuple):
    """Whether next-word probabilities sum to one."""

    deviation: float  # the largest |sum over x of p(x | context) - 1|
    contexts: int


@torch.no_grad()
def check_normalisation(model: LanguageModel, batches: Iterable[Batch], contexts: int = 1000) -> Normalisation:
    """Sum p(x | context) over the vocabulary at the end of each row of each batch, until there are enough contexts."""
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


def memory(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """The peak memory of a few training steps on a GPU in bytes, without what was allocated before."""
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


def analyse(
    model: LanguageModel, config: RunConfig, corpus: Corpus, analyses: Mapping[str, Analysis]
) -> tuple[Figures, dict[str, str]]:
    """The figures of all analyses, and the errors of those that failed, so that a failure does not lose the run."""
    figures: Figures = {}
    errors: dict[str, str] = {}
    for name, analysis in analyses.items():
        try:
            figures |= analysis(model, config, corpus)
        except Exception as error:
            errors[name] = describe(error)
    return figures, errors


def describe(error: Exception) -> str:
    """An error in one line."""
    reason = " ".join(str(error).split())
    return reason if type(error).__name__ == "TrellisError" else f"{type(error).__name__}: {reason}"
