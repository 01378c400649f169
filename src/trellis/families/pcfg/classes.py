"""Classes of words for the emissions of preterminals."""

import numpy as np
import torch

from trellis.corpus import Corpus
from trellis.corpus.brown import brown_classes
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.support import apportion
from trellis.families.pcfg.config import PCFGConfig


def brown(corpus: Corpus, config: PCFGConfig, seed: int) -> Partition:
    """Brown classes of words, each with its own preterminals. No preterminal emits <eos>: it is in the first class, and
    does not count."""
    tokens, words, eos = corpus["train"].tokens, len(corpus.vocab), corpus.vocab.eos
    if config.classes >= words:
        raise TrellisError(f"model.classes is {config.classes}: there are only {words - 1} words.")
    classes = brown_classes(tokens, config.classes + 1, words, seed, (eos,)).astype(np.int64)
    classes -= classes > classes[eos]
    classes[eos] = 0
    counts = np.bincount(classes[tokens[tokens != eos]], minlength=config.classes).tolist()
    return Partition(torch.from_numpy(classes), apportion(config.preterminals, counts, config.class_sizes))
