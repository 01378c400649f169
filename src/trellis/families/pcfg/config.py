"""The options of a probabilistic context-free grammar."""

from dataclasses import dataclass

from trellis.config import ModelConfig, RunConfig
from trellis.errors import TrellisError
from trellis.options import option

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
    params: str = option("neural", "parameterisation: nets over embeddings, or tables", choices=PARAMS)
    dropout_rate: float = option(0.0, "fraction of nonterminals dropped in each training step", within="[0, 1)")
    dim: int = option(256, "neural: size of the embeddings", within="[2, 1e9]")
    depth: int = option(1, "neural: residual layers of each net", within="[1, 1000]")
    net_dropout: float = option(0.0, "neural: dropout within the nets", within="[0, 1)")

    @property
    def learner(self) -> str:
        return "em" if self.params == "table" else ""

    def check(self, run: RunConfig) -> None:
        if run.batches.order not in ("", "sentences"):
            raise TrellisError(
                f'batches.order is "{run.batches.order}": a grammar derives whole sentences; use "sentences".'
            )

    def num_values(self, words: int) -> int:
        symbols, rank = self.nonterminals + self.preterminals, self.rank or self.nonterminals
        if self.params == "table":
            return 2 * symbols * rank + words * self.preterminals
        return (2 * symbols + words) * self.dim

    def values_per_token(self, words: int) -> int:
        return self.rank or self.nonterminals
