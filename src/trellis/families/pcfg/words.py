"""The words of preterminals: their Brown classes, and their logits from nets or tables."""

import numpy as np
import torch
from torch import Tensor, nn

from trellis.corpus import Corpus
from trellis.corpus.brown import brown_classes
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.nets import Residual
from trellis.families.hmm.parameters.neural import ClassLogits, every_logit
from trellis.families.hmm.parameters.support import apportion
from trellis.families.pcfg.config import PCFGConfig

INIT_STD = 0.3  # of the initial logits of a table


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


class WordNet(nn.Module):
    """Logits f(e_T) . a_x + b_x, for each word x and each preterminal T that can emit x."""

    def __init__(
        self, words: int, preterminals: int, partition: Partition | None, dim: int, depth: int, dropout: float
    ) -> None:
        super().__init__()
        self.partition = partition
        self.net = Residual(dim, depth, dropout)
        self.vectors = nn.Parameter(torch.randn(words, dim) / dim**0.5)
        self.bias = nn.Parameter(torch.zeros(words))
        self.class_logits = ClassLogits(partition.word_class) if partition else None

    def forward(self, preterminals: Tensor, kept: Tensor | None = None) -> Tensor:
        """Embeddings of preterminals [P, d], all or those kept -> [V, k]."""
        states, words, dtype = self.net(preterminals), self.vectors, self.vectors.dtype
        if self.partition is None or self.class_logits is None:
            logits = every_logit(states, words, None, dtype)
        else:
            logits = self.class_logits(states, words, self.partition, dtype)
        return logits + self.bias[:, None]

    @torch.no_grad()
    def shift(self, scores: Tensor) -> None:
        """Add scores [V] to the logits of the words of every preterminal."""
        self.bias.add_(scores)


class WordTable(nn.Module):
    """One logit for every word and preterminal that can emit it; cheaper than a net."""

    def __init__(self, words: int, preterminals: int, partition: Partition | None, *_: float) -> None:
        super().__init__()
        live = partition.live if partition else preterminals
        noise = INIT_STD if live > 1 else 0.0  # with one preterminal per class, there is no symmetry to break
        self.table = nn.Parameter(noise * torch.randn(words, live))

    def forward(self, preterminals: Tensor, kept: Tensor | None = None) -> Tensor:
        return self.table if kept is None else self.table[:, kept]

    @torch.no_grad()
    def shift(self, scores: Tensor) -> None:
        self.table.add_(scores[:, None])


WORD_PARAMS = {"neural": WordNet, "table": WordTable}
