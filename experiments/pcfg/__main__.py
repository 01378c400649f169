"""Figures of a saved grammar, also of one that is still being trained: python -m experiments.pcfg RUN"""

import argparse
import math
from collections.abc import Callable

import torch

from experiments.pcfg.paper import halves, mean_f1
from experiments.pcfg.treebank import read_trees
from trellis.config import DataConfig
from trellis.corpus import Split, load_corpus
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.pcfg.model import PCFG
from trellis.models.files import load

TOKENS = 4096  # of a batch


@torch.no_grad()
def perplexity(model: PCFG, text: Split) -> float:
    """The perplexity of a text, every sentence on its own, with its end as a token."""
    batches = Sentences(text, TOKENS, shuffle=False)
    total = sum(float(model.log_likelihood(batch, None)[0]) for batch in batches)
    return math.exp(-total / batches.tokens)


def of_text(model: PCFG, name: str) -> str:
    return f"{name}: perplexity {perplexity(model, load_corpus(DataConfig(source='ptb'))[name]):.2f}"


def of_trees(model: PCFG, name: str) -> str:
    return f"{name}: F1 {mean_f1(model, halves(read_trees())[name]):.2f}"


FIGURES: dict[str, Callable[[PCFG, str], str]] = {
    "valid": of_text, "test": of_text, "choosing": of_trees, "final": of_trees,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("python -m experiments.pcfg", description="Figures of a saved grammar on PTB.")
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("--figure", action="append", choices=FIGURES, help="repeatable (default: all)")
    args = parser.parse_args()
    try:
        model = load(args.run)
    except TrellisError as error:
        parser.error(str(error))
    if not isinstance(model, PCFG):
        parser.error(f"{args.run} is not a grammar.")
    for name in args.figure or FIGURES:
        print(FIGURES[name](model, name), flush=True)


if __name__ == "__main__":
    main()
