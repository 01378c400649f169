"""The options of neural language models."""

from dataclasses import dataclass

from trellis.config import ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class RNNConfig(ModelConfig):
    """The size of a simple recurrent network."""

    family: str = "rnn"
    dim: int = option(256, "size of the embeddings and of the hidden vector", within="[1, 1e9]")
    net_dropout: float = option(0.0, "variational dropout of units", within="[0, 1)")
    init_from: str = option("", "run or TOML file of an LDS of dim - 1 dimensions, whose filter initialises the RNN")

    def num_values(self, words: int) -> int:
        return self.dim * (words + self.dim)

    def values_per_token(self, words: int) -> int:
        return self.dim


@dataclass(frozen=True)
class LSTMConfig(ModelConfig):
    """The size of an LSTM."""

    family: str = "lstm"
    dim: int = option(256, "size of the embeddings and of the hidden vectors", within="[1, 1e9]")
    depth: int = option(1, "layers", within="[1, 1000]")
    net_dropout: float = option(0.0, "variational dropout of units", within="[0, 1)")
    tying: str = option("all", "tie input and output embeddings", choices="all none")

    def num_values(self, words: int) -> int:
        return self.dim * (words + 8 * self.depth * self.dim)

    def values_per_token(self, words: int) -> int:
        return self.dim


@dataclass(frozen=True)
class FeedForwardConfig(LSTMConfig):
    """The size of a feed-forward network."""

    family: str = "feedforward"
    window: int = option(4, "number of previous words that the network reads", within="[1, 1e6]")
    hidden: int = option(0, "units per hidden layer. 0: the same as `dim`", within="[0, 1e9]")

    def num_values(self, words: int) -> int:
        units = self.hidden or self.dim
        return self.dim * (words + self.window * units) + (self.depth - 1) * units * units

    def values_per_token(self, words: int) -> int:
        return self.dim * self.window
