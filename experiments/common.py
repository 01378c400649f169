"""What all papers share: ordinary runs, their figures, and the analyses of trained language models."""

from __future__ import annotations

from typing import Any

from experiments import analyses
from experiments.paper import Figure, Kind, Paper, three_digits
from experiments.training import run_training
from trellis.config import RunConfig
from trellis.report.format import compact, log_prob, percent, perplexity, whole


def dropout(config: Any) -> str:
    """The kind and rate of dropout."""
    kind = config.model.dropout
    return kind if kind == "none" else f"{kind} {config.model.dropout_rate:g}"


COMMON = Paper(
    kinds={"training": Kind(RunConfig, run_training)},
    figures={
        "parameters": Figure("parameters", lambda count: compact(float(f"{count:.3g}"))),
        **{split: Figure(split, perplexity) for split in ("train", "valid", "test")},
        "seconds": Figure("seconds", whole, lambda result: result.training["seconds"]),
        "jobs": Figure("runs at a time", whole, lambda result: result.hardware["jobs"]),
        "occupancy": Figure("occupancy", percent),
        "effective_states": Figure("effective states", whole),
        "emission_entropy": Figure("H(emit)", log_prob),
        "transition_entropy": Figure("H(transition)", log_prob),
        "visited_emission_entropy": Figure("H(emit), by visits", log_prob),
        "visited_transition_entropy": Figure("H(transition), by visits", log_prob),
        "deviation": Figure("sum p - 1", three_digits),
        "memory": Figure("GB of a step", lambda size: f"{size / 1e9:.2f}"),
    },
    facts={"dropout": dropout},
    analyses={"states": analyses.states, "normalisation": analyses.normalisation, "memory": analyses.memory},
)
