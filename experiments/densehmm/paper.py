"""Tables of the DenseHMM paper: every cell trains the models below, and its figures are medians with quartiles."""

from __future__ import annotations

from experiments.densehmm.cells import CURVE, run_cell
from experiments.densehmm.config import DenseRun
from experiments.paper import Figure, Kind, Paper
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.report.format import finite, perplexity, whole

MODELS = {"em": "dense EM", "direct": "dense direct", "standard": "standard", "fair": "standard, fair"}
METRICS = {  # heading and format, of each model
    "mad": ("{}", finite("{:.5f}")),
    "analytic": ("{}", finite("{:.5f}")),
    "nll": ("{}", finite("{:.3f}")),
    "seconds": ("s, {}", finite("{:.1f}")),
    "valid": ("valid, {}", perplexity),
    "test": ("test, {}", perplexity),
}

PAPER = Paper(
    kinds={"dense": Kind(DenseRun, run_cell)},
    figures={
        "symbols": Figure("symbols", whole),
        **{
            f"{metric}_{name}": Figure(heading.format(model), write)
            for metric, (heading, write) in METRICS.items()
            for name, model in MODELS.items()
        },
        **{
            f"{kernel}{after}": Figure(kernel + after.replace("_", " "), finite("{:.3f}"))
            for kernel in KERNELS
            for after in ("", *(f"_after_{step}" for step in CURVE))
        },
    },
    facts={"n, l": lambda config: (config.model.states, config.model.length)},
)
