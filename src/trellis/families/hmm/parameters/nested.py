"""Nets over embeddings that choose the class of the next state first, and then the state in it."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.base import Support
from trellis.families.hmm.parameters.dropout import Draw
from trellis.families.hmm.parameters.neural import NeuralParams
from trellis.kernels.lse import Known
from trellis.transitions import Entry, Nested, Transition
from trellis.transitions.nested import NestedEntry


class NestedParams(NeuralParams):
    """`NeuralParams` with p(z' | z) = p(c' | z) p(z' | z, c') for the class c' of z':

        p(c' | z) ∝ exp(f_move(e_z) . g_c' + h_c'),    p(z' | z, c') ∝ exp(f_move(e_z) . e'_z') over the states of c'.
    g_c' and h_c' are the embedding and the bias of class c'. State dropout does not change p(c' | z)."""

    kind = "nested"
    drops: ClassVar[tuple[str, ...]] = ("state",)
    within_classes = True

    def __init__(self, words: Sequence[str], config: HMMConfig, support: Support = None, seed: int = 0) -> None:
        super().__init__(words, config, support, seed)
        if not isinstance(support, Partition) or support.own is not None:
            raise TrellisError('model.params = "nested" needs classes with equal numbers of states.')
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.class_keys = nn.Parameter(config.init_std * torch.randn(support.num_classes, config.dim))
        self.class_bias = nn.Parameter(torch.zeros(support.num_classes))

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        """Also shift the logit of each class, by the log of the sum of exp(scores) over its words."""
        super().shift_word_logits(scores)
        assert self.partition is not None
        totals = torch.zeros_like(self.class_bias).index_add_(0, self.partition.word_class, scores.exp()).log_()
        self.class_bias.add_(totals - totals.mean())

    def transition_between(self, before: Tensor, after: Tensor, draw: Draw) -> Transition:
        queries = self.queries(before)
        return Nested(queries, after, self.log_classes(queries), self.dtype)

    def entry_from(self, ids: Tensor, before: Tensor, after: Tensor, draw: Draw, known: Known | None) -> Entry:
        queries = self.queries(before)
        return NestedEntry(queries, after, self.log_classes(queries), self.dtype)

    def log_classes(self, queries: Tensor) -> Tensor:
        """log p(c' | z): [R, d] -> [R, C]."""
        logits = queries @ self.class_keys.T.to(queries.dtype)
        return (logits.to(self.class_bias.dtype) + self.class_bias).log_softmax(-1)
