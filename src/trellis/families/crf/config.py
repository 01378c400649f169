"""The options of a CRF tagger."""

from dataclasses import dataclass

from trellis.config import FitConfig, ModelConfig
from trellis.errors import TrellisError
from trellis.options import option


@dataclass(frozen=True)
class CRFTaggerConfig(ModelConfig):
    """The features of the tagger."""

    family: str = "crf"
    template: str = option(
        "",
        "feature template. Default: pos, or chunk if the tags mark spans",
        choices=("", "pos", "chunk", "ner", "huang"),
    )
    representations: str = option("", "pre-trained word representations: KIND:PATH, separated by ;")
    scheme: str = option("IOB2", "encoding of spans in training", choices="IOB1 IOB2 IOBES")
    scale: float = option(0.3, "root mean square of word vectors after scaling", within="(0, 1e6]")
    pos: bool = option(True, "use parts of speech if the data has them")
    unseen: bool = option(False, "also give weights to pairs of feature and tag that never occur together")
    min_count: int = option(1, "minimum count of a feature", within="[1, inf)")


@dataclass(frozen=True)
class CRFTrainConfig(FitConfig):
    """Options of the optimisers; the loss is -log p(y | x) + l2 |w|^2 over the whole text."""

    l2: float = option(1.0, "L2 regularisation", within="[0, 1e9]")
    l1: float = option(0.0, "crfsuite: L1 regularisation", within="[0, 1e9]")
    iterations: int = option(150, "maximum number of iterations; with adagrad, of epochs", within="[1, inf)")
    tolerance: float = option(
        1e-4, "stop if the loss falls by less than this fraction in ten iterations", within="[0, inf)"
    )
    history: int = option(6, "lbfgs: memory size", within="[1, 1000]")
    lr: float = option(0.1, "adagrad: learning rate", within="(0, 1000]")
    batch: int = option(64, "adagrad: sentences per batch", within="[1, 1e9]")
    checkpoint_seconds: float = option(60.0, "lbfgs, adagrad: seconds between checkpoints", within="[0, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 and self.learner != "crfsuite":
            raise TrellisError(f'train.l1 is {self.l1}, but only train.learner = "crfsuite" supports L1.')
