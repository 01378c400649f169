"""Language modelling: the one perplexity function, for every model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from trellis.errors import TrellisError
from trellis.models.base import SequenceModel
from trellis.types import Batch


class Evaluation(NamedTuple):
    """The log-likelihood of a text under a model. Every token counts, <eos> and <unk> included."""

    log_likelihood: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(-log p / tokens); inf where the text is impossible."""
        return math.exp(min(-self.log_likelihood / self.tokens, 700.0)) if self.log_likelihood > -math.inf else math.inf


@torch.no_grad()
def evaluate(model: SequenceModel, batches: Iterable[Batch], carry: bool = True) -> Evaluation:
    """Score every token of the batches; with `carry` a row goes on where the row of the batch before ended,
    except where the batch calls it fresh."""
    total, tokens, lanes, state = 0.0, 0, 0, None
    for batch in batches:
        if not carry or lanes < len(batch.tokens):
            state = model.start(len(batch.tokens))
        lanes = len(batch.tokens)
        log_probs, state = model.score(batch.tokens, model.reset(state, batch.fresh), batch.lengths)
        total += float(log_probs.sum(dtype=torch.float64))
        tokens += int(batch.lengths.sum())
    if not tokens:
        raise TrellisError("There is nothing to evaluate: the split has no tokens.")
    return Evaluation(total, tokens)


def perplexity(model: SequenceModel, batches: Iterable[Batch], carry: bool = True) -> float:
    """exp(-log p / tokens) over every token."""
    return evaluate(model, batches, carry).perplexity
