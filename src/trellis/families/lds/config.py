"""The options of a linear dynamical system."""

from dataclasses import dataclass

from trellis.config import FitConfig, ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class LDSConfig(ModelConfig):
    """The size of the hidden vectors, what is counted, and how the noise is modelled."""

    family: str = "lds"
    dim: int = option(256, "size of the hidden vectors", within="[1, inf)")
    blocks: int = option(4, "lags that subspace identification looks back and ahead", within="[2, inf)")
    horizon: int = option(7, "lags that EM takes from the text", within="[1, inf)")
    pseudocounts: float = option(5.0, "of each word, in the scale that it is given", within="[0, inf)")
    noise_prior: float = option(5.0, "pseudocounts of each word in the noise, for rare words' sake", within="[0, inf)")
    noise: str = option("full", "covariance of the observations", choices="full diagonal spherical bohning")
    whiten: bool = option(True, "scale words by their frequency before the subspace is identified")
    init: str = option("subspace", "where EM begins", choices="subspace random")
    max_words: int = option(0, "so many words, the commonest, have vectors of their own; 0: all", within="[0, inf)")


@dataclass(frozen=True)
class LDSTrainConfig(FitConfig):
    """How long to train."""

    epochs: int = option(10, "em: iterations", within="[0, inf)")
    patience: int = option(0, "em: stop after this many iterations without improvement on valid", within="[0, inf)")
    checkpoint_seconds: float = option(300.0, "em: seconds between checkpoints", within="[0, inf)")
