"""The options of a linear dynamical system."""

from dataclasses import dataclass

from trellis.config import FitConfig, ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class LDSConfig(ModelConfig):
    """The size of the hidden vectors, the lags counted, and the noise model."""

    family: str = "lds"
    dim: int = option(256, "size of the hidden vectors", within="[1, 1e9]")
    blocks: int = option(4, "block rows of the Hankel matrix in subspace identification", within="[2, 1000]")
    horizon: int = option(7, "lags used by EM", within="[1, 1000]")
    pseudocounts: float = option(5.0, "pseudocounts per word in the whitening scale", within="[0, 1e9]")
    noise_prior: float = option(5.0, "pseudocounts per word in the variance of the noise", within="[0, 1e9]")
    noise: str = option("full", "covariance of the observation noise", choices="full diagonal spherical bohning")
    whiten: bool = option(True, "scale words by their frequency in subspace identification")
    init: str = option("subspace", "initialisation of EM", choices="subspace random")
    max_words: int = option(0, "number of words, by frequency, with their own vectors. 0: all", within="[0, inf)")

    def num_values(self, words: int) -> int:
        return self.dim * (self.dim + min(words, self.max_words or words))


@dataclass(frozen=True)
class LDSTrainConfig(FitConfig):
    """When to stop training, and how often to write checkpoints."""

    epochs: int = option(10, "em: iterations", within="[0, inf)")
    patience: int = option(0, "em: stop after this many iterations without improvement", within="[0, inf)")
    checkpoint_seconds: float = option(300.0, "em: seconds between checkpoints", within="[0, inf)")
