"""Tables of grammars: perplexity of PTB sentence by sentence, and F1 of trees. The sentences with gold trees are left
out of the training text; half of them are for choosing among runs, and half for the final figure."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.paper import Figure, Job, Kind, Outcome, Paper
from experiments.pcfg.treebank import BASELINES, Gold, f1, read_trees, without
from experiments.results import Figures
from experiments.training import refuse_another
from trellis.config import RunConfig
from trellis.corpus import load_corpus
from trellis.families.pcfg.model import PCFG
from trellis.families.pcfg.parse import splits_of
from trellis.models.text import in_batches, sentences_of
from trellis.options import choose
from trellis.report.format import finite
from trellis.training.run import train

SEED = 0  # of the division of the trees


@dataclass(frozen=True)
class BaselineRun:
    """Trees that no model has learned."""

    trees: str = "right"  # left | right | random
    seed: int = 0
    device: str = "cpu"


def halves(trees: list[Gold]) -> dict[str, list[Gold]]:
    """The trees of two words or more, divided at random into those for choosing and those for the final figure."""
    order = np.random.default_rng(SEED).permutation([i for i, gold in enumerate(trees) if len(gold.words) > 1])
    middle = len(order) // 2
    return {"choosing": [trees[i] for i in order[:middle]], "final": [trees[i] for i in order[middle:]]}


def run_grammar(job: Job) -> Outcome:
    """Train a language model on the sentences without gold trees; a grammar also parses those with gold trees."""
    config, trees, folder = job.config, read_trees(), job.folder / f"{job.run}.{job.config.seed}"
    if job.force:
        shutil.rmtree(folder, ignore_errors=True)
    refuse_another(config, folder)
    corpus = without(load_corpus(config.data), trees)
    trained = train(config, folder, resume=True, data=corpus)
    if trained.interrupted:
        raise KeyboardInterrupt
    figures: Figures = {**trained.scores.values} if trained.scores else {}
    if isinstance(model := trained.model, PCFG):
        begun = time.monotonic()
        figures |= {f"{name}_f1": mean_f1(model, part) for name, part in halves(trees).items()}
        figures["parsing_seconds"] = time.monotonic() - begun
    return Outcome(corpus.description, figures, dict(trained.training))


def mean_f1(model: PCFG, trees: list[Gold]) -> float:
    """The mean unlabelled F1 of sentences, in percent."""
    given = sentences_of(model, [model.vocab.encode(gold.words) for gold in trees])
    found = zip(in_batches(model, given, partial(splits_of, model)), trees, strict=True)
    return 100 * float(np.mean([f1(splits, gold) for splits, gold in found]))


def run_baseline(job: Job) -> Outcome:
    """F1 of trees that no model has learned."""
    make, random = choose(BASELINES, job.config.trees, "trees"), np.random.default_rng(job.config.seed)
    figures: Figures = {}
    for name, part in halves(read_trees()).items():
        figures[f"{name}_f1"] = 100 * float(np.mean([f1(make(len(gold.words), random), gold) for gold in part]))
    return Outcome("treebank_sample", figures)


PAPER = Paper(
    kinds={"grammar": Kind(RunConfig, run_grammar), "baseline": Kind(BaselineRun, run_baseline)},
    figures={
        "choosing_f1": Figure("F1, choosing", finite("{:.1f}")),
        "final_f1": Figure("F1, final", finite("{:.1f}")),
        "parsing_seconds": Figure("seconds of parsing", finite("{:.0f}")),
    },
)
