"""Tables of factorial HMMs: exact perplexity, and the gaps of the tilted bound and of Jensen's bound."""

from __future__ import annotations

import math

from experiments.paper import Figure, Paper, three_digits
from experiments.results import Figures
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.mean_field import infer
from trellis.families.factorial.model import FHMM
from trellis.models.base import LanguageModel
from trellis.tasks.lm import READINGS, evaluate

SWEEPS = 30  # sweeps until a mean field has converged


def bounds(model: LanguageModel, config: RunConfig, corpus: Corpus) -> Figures:
    """The gaps between log p and the two converged bounds, in nats per token of the validation set.

    Since adding constants to the columns of theta changes only Jensen's bound, its gap is the smaller of two: for theta
    as trained, and with each layer normalised on its own."""
    if not isinstance(model, FHMM):
        return {}
    batches = list(READINGS["sentences"](corpus["valid"]))
    exact, emission, chains = evaluate(model, batches), model.emission(), model.chains()
    alone = (emission.bias.log_softmax(0).unsqueeze(-1) + emission.theta).logsumexp(0)
    centred = LogLinear(emission.theta - alone, emission.bias, emission.sizes)

    def gap(bound: str, given: LogLinear) -> float:
        found = (infer(chains, given, batch.tokens, batch.lengths, SWEEPS, bound).bound.sum() for batch in batches)
        return (exact.log_likelihood - sum(map(float, found))) / exact.tokens

    tried = [gap("jensen", given) for given in (emission, centred)]  # large constants overflow and are ignored
    tilted, jensen = gap("tilted", emission), min(filter(math.isfinite, tried), default=math.inf)
    return {"tilted_gap": tilted, "jensen_gap": jensen, "tighter": jensen - tilted}


PAPER = Paper(
    figures={
        "tilted_gap": Figure("tilted gap", three_digits),
        "jensen_gap": Figure("Jensen gap", three_digits),
        "tighter": Figure("tighter", three_digits),
    },
    analyses={"bounds": bounds},
)
