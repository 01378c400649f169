"""Tables of taggers: scores on frequent, rare and unknown words, p-values, and the states of ambiguous words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.paper import Figure, Kind, Paper, three_digits
from experiments.tagging.config import TaggingRun
from experiments.tagging.taggers import AMBIGUOUS, run_tagging
from trellis.report.format import compact, finite, whole

BUCKETS = {"all": "", "oov": "OOV ", "rare": "rare ", "oov+rare": "OOV or rare "}  # count in training: any, 0, 1-2, 0-2
RIVALS = {  # taggers that others are compared with, besides their base
    "genia-hmm-80-posterior": "HMM-POST-80",
    "genia-brown-1000": "Brown-1000",
    "medpost-hmm-80-posterior": "HMM-POST-80",
    "medpost-brown-1000": "Brown-1000",
    "ner-lds-50": "LDS-50",
    "ner-word2vec-50": "W2V-50",
    "sample-universal-word2vec-50": "W2V-50",
}
SCORES = {
    "accuracy": "accuracy",
    "viterbi": "joint Viterbi",  # only for taggers with hidden states, like the next two
    "many": "many to one",
    "one": "one to one",
    **{
        f"{bucket}_{score}": f"{heading}{score}"
        for bucket, heading in BUCKETS.items()
        for score in ("f1", "precision", "recall", "error")
    },
}


def has_base(config: Any) -> bool:
    """Whether the tagger is compared with another."""
    return bool(config.base)


def against(run: str) -> Callable[[Any], bool]:
    """Whether a configuration asks for a comparison with this run."""
    return lambda config: run in config.rivals.split()


PAPER = Paper(
    kinds={"tagging": Kind(TaggingRun, run_tagging)},
    figures={
        "attributes": Figure("attributes", compact),
        **{
            f"{split}_{score}": Figure(f"{split} {heading}", finite("{:.2f}"))
            for split in ("valid", "test")
            for score, heading in SCORES.items()
        },
        **{f"p_{run}": Figure(f"p, {name}", three_digits, None, against(run)) for run, name in RIVALS.items()},
        "least_used": Figure("effective states, least used layer", finite("{:.1f}")),
        "most_used": Figure("most used layer", finite("{:.1f}")),
        **{f"{test}_p": Figure(f"p ({test})", three_digits, None, has_base) for test in ("binomial", "bootstrap")},
        **{f"{what}_{word}": Figure(f"{what} of {word}", whole) for what in ("states", "tokens") for word in AMBIGUOUS},
    },
)
