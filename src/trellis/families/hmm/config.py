"""The options of an HMM."""

from collections.abc import Iterator
from dataclasses import dataclass

from trellis.config import ModelConfig
from trellis.errors import TrellisError
from trellis.extensions import PARAMETERS
from trellis.options import option

PARAMS = {
    "table": "trellis.families.hmm.parameters.table:TableParams",
    "neural": "trellis.families.hmm.parameters.neural:NeuralParams",
    "nested": "trellis.families.hmm.parameters.nested:NestedParams",
    "lowrank": "trellis.families.hmm.parameters.lowrank:LowRankParams",
    "lowrank-table": "trellis.families.hmm.parameters.lowrank:LowRankTable",
}
NETS = ("neural", "nested", "lowrank")  # parameterisations with embeddings


@dataclass(frozen=True)
class HMMConfig(ModelConfig):
    """The structure and size of an HMM."""

    family: str = "hmm"
    states: int = option(
        0,
        "number of hidden states. auto (0): chosen, with related options, from the text and the speed of the machine",
        within="[0, 1e9]",
        auto=True,
    )
    emission: str = option(
        "full",
        "states that can emit a word. full: all; brown: those of its class; uniform: random ones; cloned: its own",
        choices="full brown uniform cloned",
    )
    classes: int = option(64, "brown: number of word classes, each with its own states", within="[1, 1e9]")
    singletons: int = option(0, "brown: number of frequent words with a class of their own", within="[0, 1e9]")
    class_sizes: str = option(
        "equal",
        "brown: states per class. equal: the same number; log, root: by the log or square root of the class's tokens",
        choices="equal log root",
    )
    init: str = option(
        "random",
        "initial tables. contexts: each cloned state begins as a context of its word",
        choices="random contexts",
    )
    states_per_word: int = option(16, "uniform: number of states that emit a word", within="[1, 1e9]")
    params: str = option(
        "table",
        "table: one logit per probability; neural: nets over embeddings; nested: nets that first choose the class of "
        "the next state; lowrank, lowrank-table: nets or tables with low-rank transitions",
        choices=PARAMS,
        group=PARAMETERS,
    )
    params_options: str = option("", "options of a parameterisation from another package: key=value, ...")
    dropout: str = option(
        "none",
        "what a training step drops. state: states of each class; unstructured: single transitions",
        choices="none state unstructured",
    )
    dropout_rate: float = option(0.5, "fraction dropped", within="[0, 1)")
    dropout_end: float | None = option(
        None, "fraction dropped at the end of training. Default: dropout_rate", within="[0, 1)"
    )
    dim: int = option(256, "neural, nested, lowrank: size of the embeddings", within="[1, 1e9]")
    tying: str = option(
        "all", "neural, nested, lowrank: state roles that share an embedding", choices="all in-out but-out none"
    )
    factored: bool = option(False, "neural, nested, lowrank: states of a class share half of their embedding")
    spelling: bool = option(False, "neural, nested, lowrank: character n-gram features of words")
    depth: int = option(1, "neural, nested, lowrank: residual layers of each net", within="[1, 1000]")
    net_dropout: float = option(0.0, "neural, nested, lowrank: dropout within the nets", within="[0, 1)")
    kernel: str = option(
        "softmax",
        "neural: kernel of p(z' | z). All but softmax need a dense [K, K] matrix",
        choices="softmax normAbsLin sigmoid relu rbf",
    )
    init_std: float = option(
        0.2, "neural, nested, lowrank: standard deviation of the initial embeddings", within="[0, 1000]"
    )
    precision: str = option(
        "bfloat16", "neural, nested, lowrank: precision of products on a GPU", choices="bfloat16 float32"
    )
    features: int = option(256, "lowrank, lowrank-table: rank of the transitions", within="[1, 1e9]")
    band: int = option(0, "lowrank, lowrank-table: width of the band of free weights", within="[0, 1e9]")
    feature_map: str = option("learned", "lowrank: type of feature map", choices="learned random orthogonal taylor")
    temperature: float = option(1.0, "lowrank: kernel exp(u . v / temperature)", within="(0, 1e6]")
    feature_dropout: float = option(0.0, "lowrank, lowrank-table: fraction of features dropped", within="[0, 1)")

    @property
    def learner(self) -> str:
        return "gradient" if self.params in NETS else ""

    def num_values(self, words: int) -> int:
        if self.init == "contexts" or self.params not in PARAMS:
            return 0  # unknown: the text, or another package, determines it
        size, dim, dense = self.states, self.dim, self.params == "table" or self.kernel != "softmax"
        low_rank = size * (self.features + self.band) if self.params.startswith("lowrank") else 0
        nets = (size + words + self.depth * dim) * dim if self.params in NETS else 0
        return (size * size if dense else 0) + low_rank + nets + words * self.values_per_token(words)

    def values_per_token(self, words: int) -> int:
        live = {"brown": self.states // self.classes, "uniform": self.states_per_word, "cloned": 1}
        return live.get(self.emission, self.states)

    def __post_init__(self) -> None:
        super().__post_init__()
        for wrong, sentence in self.conflicts():
            if wrong:
                raise TrellisError(sentence)
        if self.params not in PARAMS:  # from another package: its options need an import
            from trellis.families.hmm.parameters.base import check_choices

            check_choices(self)

    def conflicts(self) -> Iterator[tuple[bool, str]]:
        """Pairs of a condition that makes the options invalid and its error message."""
        nets, low_rank = self.params in NETS, self.params.startswith("lowrank")
        brown, uniform = self.emission == "brown", self.emission == "uniform"
        classes, drops = brown or self.emission == "cloned", self.dropout
        size, k, own = self.states, self.states_per_word, self.params in PARAMS and self.params_options
        yield bool(own), f'model.params_options is {own!r}, but model.params = "{self.params}" has no such options.'
        yield self.factored and not nets, 'model.factored needs embeddings: use model.params = "neural" or "lowrank".'
        yield self.factored and not classes, 'model.factored needs classes: use model.emission = "brown" or "cloned".'
        yield nets and self.dim < 2, f"model.dim is {self.dim}: embeddings need at least 2 dimensions."
        nested, equal = self.params == "nested", classes and self.class_sizes == "equal"
        yield nested and not equal, 'model.params = "nested" needs model.emission = "brown" and classes of equal size.'
        yield nested and self.kernel != "softmax", 'model.params = "nested" has only model.kernel = "softmax".'
        yield nested and drops == "unstructured", 'model.params = "nested" has only model.dropout = "state".'
        yield low_rank and self.kernel != "softmax", "Low-rank models use model.feature_map, not model.kernel."
        yield low_rank and drops == "unstructured", 'Low rank excludes model.dropout = "unstructured"; use "state".'
        yield drops == "none" and self.dropout_end is not None, "model.dropout_end needs dropout: set model.dropout."
        yield uniform and drops == "state", 'State dropout needs classes, which model.emission = "uniform" lacks.'
        yield brown and 0 < size < self.classes, f"model.classes is {self.classes}: there are only {size} states."
        yield brown and self.singletons >= self.classes, "model.singletons must be smaller than model.classes."
        contexts, tables = self.init == "contexts", self.emission == "cloned" and self.params == "table"
        yield (
            contexts and size > 0 and not tables,
            'model.init = "contexts" needs model.emission = "cloned" and model.params = "table".',
        )
        yield uniform and 0 < size < k, f"model.states_per_word is {k}: there are only {size} states."
