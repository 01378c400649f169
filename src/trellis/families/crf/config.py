"""The options of a CRF tagger."""

from dataclasses import dataclass

from trellis.config import FitConfig, ModelConfig
from trellis.errors import TrellisError
from trellis.options import option


@dataclass(frozen=True)
class CRFTaggerConfig(ModelConfig):
    """What the tagger looks at."""

    family: str = "crf"
    template: str = option("", "empty: pos for tokens, chunk for spans", choices=("", "pos", "chunk", "ner", "huang"))
    representations: str = option("", "of words, learned elsewhere: KIND:PATH, several with ; between them")
    scheme: str = option("IOB2", "in which spans are learned", choices="IOB1 IOB2 IOBES")
    scale: float = option(0.3, "root mean square of real-valued features that are not probabilities", within="(0, inf)")
    pos: bool = option(True, "look at parts of speech where the data has them")
    min_count: int = option(1, "tokens that a feature must have", within="[1, inf)")


@dataclass(frozen=True)
class CRFTrainConfig(FitConfig):
    """How to train; the loss is -log p(y | x) + l2 |w|^2 over the whole text."""

    l2: float = option(1.0, "weight of the squared norm", within="[0, inf)")
    l1: float = option(0.0, "crfsuite: weight of the absolute norm", within="[0, inf)")
    iterations: int = option(150, "lbfgs, crfsuite: iterations; adagrad: epochs", within="[1, inf)")
    tolerance: float = option(1e-4, "relative improvement over ten iterations that ends training", within="[0, inf)")
    history: int = option(6, "lbfgs: corrections kept", within="[1, inf)")
    lr: float = option(0.1, "adagrad: learning rate", within="(0, inf)")
    batch: int = option(64, "adagrad: sentences", within="[1, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 and self.learner != "crfsuite":
            raise TrellisError(f'train.l1 is {self.l1}, which is for train.learner = "crfsuite" alone.')
