"""Figures of a saved grammar, also of one that is still being trained: python -m experiments.pcfg RUN [FIGURE ...]"""

import argparse
import math

import torch

from experiments.pcfg.paper import halves, mean_f1
from experiments.pcfg.treebank import read_trees
from trellis.config import DataConfig
from trellis.corpus import load_corpus
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.pcfg.model import PCFG
from trellis.models.files import load

TEXTS, HALVES = ("valid", "test"), ("choosing", "final")
TOKENS = 4096  # of a batch


@torch.no_grad()
def perplexity(model: PCFG, name: str) -> float:
    """The perplexity of a split of PTB, every sentence on its own, with its end as a token."""
    batches = Sentences(load_corpus(DataConfig(source="ptb"))[name], TOKENS, shuffle=False)
    total = sum(float(model.log_likelihood(batch, None)[0]) for batch in batches)
    return math.exp(-total / batches.tokens)


def main() -> None:
    parser = argparse.ArgumentParser("python -m experiments.pcfg", description="Figures of a saved grammar on PTB.")
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("figures", nargs="*", choices=[*TEXTS, *HALVES, []], help="all of them, unless named")
    args = parser.parse_args()
    model = load(args.run)
    if not isinstance(model, PCFG):
        raise TrellisError(f"{args.run} is not a grammar.")
    for name in args.figures or [*TEXTS, *HALVES]:
        if name in TEXTS:
            print(f"{name}: perplexity {perplexity(model, name):.2f}", flush=True)
        else:
            print(f"{name}: F1 {mean_f1(model, halves(read_trees())[name]):.2f}", flush=True)


if __name__ == "__main__":
    main()
