"""The options of a factorial HMM."""

from dataclasses import dataclass

from trellis.config import ModelConfig, RunConfig, TrainConfig
from trellis.errors import TrellisError
from trellis.options import option, shown

MOST = 10**9  # states of a layer


@dataclass(frozen=True)
class FHMMConfig(ModelConfig):
    """The layers of a factorial HMM, their numbers of states, and how the layers jointly emit words."""

    family: str = "fhmm"
    layers: int = option(3, "number of chains, each with `states` states", within="[1, 1000]")
    states: int = option(256, "number of states per layer", within="[1, 1e9]")
    layer_states: str = option("", 'states of each layer if they differ, e.g. "20,10,5"')
    params: str = option("table", "word scores: a table, or products of embeddings", choices="table neural")
    dim: int = option(256, "neural: size of the embeddings", within="[1, 1e9]")
    bound: str = option("tilted", "lower bound on the log-likelihood", choices="tilted jensen")
    combine: str = option(
        "log-linear", "how the layers emit a word. noisy-or needs learner = gradient", choices="log-linear noisy-or"
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each layer, from `layer_states`, or from `layers` and `states`."""
        if not self.layer_states:
            return (self.states,) * self.layers
        try:
            sizes = tuple(int(size) for size in self.layer_states.split(","))
            if not all(1 <= size <= MOST for size in sizes):
                raise ValueError
            return sizes
        except ValueError as error:
            raise TrellisError(
                f'model.layer_states is {shown(self.layer_states)}; write for example "20,10,5".'
            ) from error

    def num_values(self, words: int) -> int:
        width = sum(self.sizes)
        return sum(size * size for size in self.sizes) + words * width + (words + width) * self.dim * self.is_neural

    def values_per_token(self, words: int) -> int:
        return sum(self.sizes)

    @property
    def is_neural(self) -> bool:
        return self.params == "neural"

    def check(self, run: RunConfig) -> None:
        self.sizes  # noqa: B018
        if run.batches.order not in ("", "sentences"):
            raise TrellisError('A factorial HMM trains on whole sentences; set batches.order = "sentences".')
        if self.combine == "noisy-or" and run.train.learner != "gradient":
            raise TrellisError('A noisy-or emission has no bound for EM; set train.learner = "gradient".')


@dataclass(frozen=True)
class FHMMTrainConfig(TrainConfig):
    """Training options, including those of the variational learners."""

    sweeps: int = option(4, "em: mean-field sweeps over the layers per batch", within="[0, inf)")
    inner: str = option(
        "auto", "stepwise-em: emission update. auto: scaling for tables, else adam", choices="auto scaling adam lbfgs"
    )
    inner_steps: int = option(
        0, "emission steps per batch; with em, per epoch. 0: 1 step (lbfgs: 5, em: 100)", within="[0, inf)"
    )
