"""Tables of linear dynamical systems: networks initialised from one, and how well vectors predict parts of speech."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.lds_for_text.config import VectorRun
from experiments.lds_for_text.vectors import SPLITS, run_vectors
from experiments.paper import Figure, Kind, Paper, three_digits
from experiments.results import Result
from trellis.report.format import finite, percent, perplexity, whole

BASELINES = {  # runs that others are compared with
    **{f"{data}-ssid": "subspace alone" for data in ("pos", "pos-penn", "pos-penn-fine")},
    **{f"{data}-word2vec": "word2vec" for data in ("pos", "pos-penn", "pos-penn-fine")},
    **{f"{data}-em": "25 hidden units" for data in ("pos", "pos-penn")},
}


def beside(run: str) -> Callable[[Any], bool]:
    """Whether a configuration asks for a comparison with this run."""
    return lambda config: run in config.beside.split()


def has_window(config: Any) -> bool:
    """Whether there is a second classifier, which sees neighbouring tokens."""
    return config.window > 0


def best_epoch(result: Result) -> float:
    return 1 + result.training["valid"].index(min(result.training["valid"]))


def learning_curve(result: Result) -> list[tuple[int, float]]:
    """Validation perplexity by epoch."""
    return list(enumerate(result.training.get("valid", []), 1))


PAPER = Paper(
    kinds={"vectors": Kind(VectorRun, run_vectors)},
    figures={
        "first_epoch": Figure("valid after 1 epoch", perplexity, lambda result: result.training["valid"][0]),
        "best_epoch": Figure("epochs", whole, best_epoch),
        **{f"gain_{split}": Figure(f"gain, {split}", finite("{:.2f}")) for split in SPLITS},
        **{f"pos_{split}": Figure(f"POS, {split}", percent) for split in SPLITS[1:]},
        **{f"window_{split}": Figure(f"{split}, window", percent, None, has_window) for split in SPLITS[1:]},
        **{f"margin_{run}": Figure(f"over {name}", percent, None, beside(run)) for run, name in BASELINES.items()},
        **{f"p_{run}": Figure(f"p, {name}", three_digits, None, beside(run)) for run, name in BASELINES.items()},
    },
    plots={"epoch": learning_curve},
)
