"""The options of an HMM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trellis.config import ModelConfig
from trellis.errors import TrellisError
from trellis.options import option

PARAMS = {
    "table": "trellis.families.hmm.parameters.table:TableParams",
    "neural": "trellis.families.hmm.parameters.neural:NeuralParams",
    "lowrank": "trellis.families.hmm.parameters.lowrank:LowRankParams",
    "lowrank-table": "trellis.families.hmm.parameters.lowrank:LowRankTable",
}


@dataclass(frozen=True)
class HMMConfig(ModelConfig):
    """Which HMM, and how large."""

    family: str = "hmm"
    states: int = option(256, "hidden states", within="[1, inf)")
    emission: str = option(
        "full",
        "states of a word: all, its Brown class's, random ones, or its own",
        choices=("full", "brown", "uniform", "cloned"),
    )
    classes: int = option(64, "brown: classes of words, each with its own states", within="[1, inf)")
    singletons: int = option(
        0,
        "brown: words, <eos> and then the most frequent, in a class of their own",
        within="[0, inf)",
        was="model.alone",
    )
    class_sizes: str = option(
        "equal",
        "brown: states of a class: the same for all, or by the log or the square root of its count",
        choices=("equal", "log", "root"),
        was="model.shares",
    )
    states_per_word: int = option(16, "uniform: states of each word", within="[1, inf)", was="model.live")
    params: str = option(
        "table",
        "a table of probabilities, nets over embeddings, low-rank transitions of such, or tables of low rank",
        choices=PARAMS,
        renamed={"scalar": "table"},
    )
    dropout: str = option(
        "none",
        "left out of a training step: states of each class, or single transitions",
        choices=("none", "state", "unstructured"),
    )
    dropout_rate: float = option(0.5, "fraction that dropout leaves out ...", within="[0, 1)")
    dropout_end: float | None = option(None, "... and at the end of training, reached linearly; none: the same")
    dim: int = option(256, "neural, lowrank: size of the embeddings", within="[1, inf)")
    tying: str = option(
        "all",
        "neural, lowrank: roles of a state that share an embedding",
        choices=("all", "in-out", "but-out", "none"),
    )
    factored: bool = option(False, "neural, lowrank: half of a state's embedding is its class's")
    spelling: bool = option(False, "neural, lowrank: words have features of their spelling", was="model.characters")
    depth: int = option(1, "neural, lowrank: residual layers of each net", within="[1, inf)")
    net_dropout: float = option(0.0, "neural, lowrank: dropout within the nets", within="[0, 1)")
    kernel: str = option(
        "softmax",
        "neural: p(z' | z) as a kernel of two embeddings; all but softmax write the [K, K] matrix out",
        choices=("softmax", "normAbsLin", "sigmoid", "relu", "rbf"),
    )
    init_std: float = option(
        0.2, "neural, lowrank: standard deviation of the initial embeddings", within="[0, inf)", was="model.spread"
    )
    precision: str = option(
        "bfloat16",
        "neural, lowrank: of products while training on a GPU; evaluation is in float32",
        choices=("bfloat16", "float32"),
    )
    features: int = option(256, "lowrank, lowrank-table: rank of the transitions", within="[1, inf)")
    band: int = option(
        0, "lowrank, lowrank-table: states around each that have transition weights of their own", within="[0, inf)"
    )
    feature_map: str = option(
        "learned",
        "lowrank: features whose products approximate the kernel",
        choices=("learned", "random", "orthogonal", "taylor"),
    )
    temperature: float = option(1.0, "lowrank: of the kernel exp(u . v / temperature)", within="(0, inf)")
    feature_dropout: float = option(
        0.0, "lowrank, lowrank-table: fraction of the features that a training step leaves out", within="[0, 1)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for wrong, sentence in self.conflicts():
            if wrong:
                raise TrellisError(sentence)

    def conflicts(self) -> Iterator[tuple[bool, str]]:
        """Combinations that make no sense, each with what to do instead."""
        classes, low_rank = self.emission in ("brown", "cloned"), self.params.startswith("lowrank")
        by_nets = self.params in ("neural", "lowrank")
        yield (
            self.factored and not by_nets,
            'model.factored is about embeddings: use model.params = "neural" or "lowrank".',
        )
        yield (
            self.factored and not classes,
            'model.factored needs classes of states: use model.emission = "brown" or "cloned".',
        )
        yield by_nets and self.dim < 2, f"model.dim is {self.dim}: embeddings need at least 2 dimensions."
        yield (
            low_rank and self.kernel != "softmax",
            'model.kernel is for model.params = "neural"; low-rank ones have a model.feature_map.',
        )
        yield (
            low_rank and self.dropout == "unstructured",
            'model.dropout = "unstructured" leaves out single transitions, which low-rank ones do not have: use '
            '"state", or model.feature_dropout.',
        )
        yield (
            self.dropout == "none" and self.dropout_end is not None,
            'model.dropout_end needs a dropout: set model.dropout = "state" or "unstructured".',
        )
        yield (
            self.dropout_end is not None and not 0 <= self.dropout_end < 1,
            f"model.dropout_end is {self.dropout_end}: it must be in [0, 1).",
        )
        yield (
            self.dropout == "state" and self.emission == "uniform",
            "State dropout needs classes of states that no word of another class shares: use model.emission = "
            '"brown", "cloned" or "full", or another model.dropout.',
        )
        yield (
            self.emission == "brown" and 0 < self.states < self.classes,
            f"model.classes is {self.classes}: there cannot be more of them than model.states = {self.states}.",
        )
        yield (
            self.emission == "brown" and self.singletons >= self.classes,
            f"model.singletons is {self.singletons}: it must leave a class of {self.classes} to other words.",
        )
        yield (
            self.emission == "uniform" and 0 < self.states < self.states_per_word,
            f"model.states_per_word is {self.states_per_word}: there are only {self.states} states.",
        )
