"""The options of a probabilistic context-free grammar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trellis.config import ModelConfig, RunConfig
from trellis.errors import TrellisError
from trellis.options import option

USUAL = {"batches.tokens": 512, "train.lr": 0.002, "train.beta1": 0.75, "train.clip": 3.0}  # of gradient training
CHARTS = 6  # in memory in a backward pass
PARAMS = {
    "neural": "trellis.families.pcfg.parameters:NeuralParams",
    "table": "trellis.families.pcfg.parameters:TableParams",
}


@dataclass(frozen=True)
class PCFGConfig(ModelConfig):
    """The size of a grammar."""

    family: str = "pcfg"
    nonterminals: int = option(32, "symbols that rewrite to two symbols", within="[1, 1e9]")
    preterminals: int = option(64, "symbols that rewrite to a word", within="[1, 1e9]")
    rank: int = option(
        0,
        "rank of the rules. 0: a simple grammar, in which the children are independent given the parent",
        within="[0, 1e9]",
    )
    emission: str = option(
        "full", "preterminals that can emit a word: all, or those of its class", choices="full brown"
    )
    classes: int = option(64, "brown: number of word classes, each with its own preterminals", within="[2, 1e9]")
    class_sizes: str = option(
        "log", "brown: growth of a class's preterminals with its tokens", choices="equal log root"
    )
    params: str = option("neural", "parameterisation: nets over embeddings, or tables", choices=PARAMS)
    word_params: str = option(
        "neural",
        "neural: words from nets over embeddings, or one logit per word and preterminal",
        choices="neural table",
    )
    dropout_rate: float = option(0.0, "fraction of nonterminals dropped in each training step", within="[0, 1)")
    preterminal_dropout: float = option(
        0.0, "full: fraction of preterminals dropped in each training step", within="[0, 1)"
    )
    dim: int = option(256, "neural: size of the embeddings", within="[2, 1e9]")
    depth: int = option(1, "neural: residual layers of each net", within="[1, 1000]")
    net_dropout: float = option(0.0, "neural: dropout within the nets", within="[0, 1)")

    @property
    def learner(self) -> str:
        return "em" if self.params == "table" else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.emission == "brown" and self.preterminals < self.classes:
            raise TrellisError(f"model.classes is {self.classes}: there are only {self.preterminals} preterminals.")
        if self.emission == "brown" and self.preterminal_dropout:
            raise TrellisError(
                'model.preterminal_dropout would leave words without preterminals; use model.emission = "full".'
            )

    def check(self, run: RunConfig) -> None:
        if run.batches.order not in ("", "sentences"):
            raise TrellisError(
                f'batches.order is "{run.batches.order}": a grammar derives whole sentences; use "sentences".'
            )
        dropped = self.dropout_rate or self.preterminal_dropout
        if run.train.learner != "gradient" and (self.params != "table" or dropped):
            raise TrellisError(
                f'train.learner = "{run.train.learner}" requires model.params = "table" without dropout; otherwise, '
                'use train.learner = "gradient".'
            )

    def usual(self, learner: str) -> Mapping[str, Any]:
        return USUAL if learner == "gradient" else {}

    def num_values(self, words: int) -> int:
        symbols, ranks = self.nonterminals + self.preterminals, self.rank or self.nonterminals
        tables = 2 * symbols * ranks + self.nonterminals * self.rank + words * self.live
        if self.params == "table":
            return tables
        word_net = self.word_params == "neural"
        vectors, nets = 2 * symbols + 2 * self.rank + words * word_net, 3 + bool(self.rank) + word_net
        return tables + (vectors + nets * self.depth * 2 * self.dim) * self.dim  # the tables of a step, with gradients

    def values_per_token(self, words: int) -> int:
        return CHARTS * (self.rank or self.nonterminals) + self.live

    @property
    def live(self) -> int:
        """The minimum number of preterminals that can emit a word."""
        return self.preterminals // self.classes if self.emission == "brown" else self.preterminals


def choose(run: RunConfig, corpus: Any, device: str) -> RunConfig:
    """The run with the usual options of its learner."""
    return run.with_usual()
