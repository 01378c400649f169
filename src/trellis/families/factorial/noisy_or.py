"""Noisy-or emissions: a word is spoken unless the leak and every layer are silent about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.nn.functional import logsigmoid

from trellis.families.factorial.loglinear import LogLinear


class NoisyOr(LogLinear):
    """p(x | z) = (1 - (1 - leak_x) prod_m (1 - lambda[x, m, z_m])) / Z(z), for logits of lambda [V, S] and leak [V].

    Silence is log-linear, so Z(z) = V - sum_x silence_x(z) takes one matrix product too. There is no bound on E log Z
    here: inference is exact, over joint states."""

    def __init__(self, logits: Tensor, leak: Tensor, sizes: Sequence[int]) -> None:
        super().__init__(logsigmoid(-logits), logsigmoid(-leak), sizes)

    def log_partition(self) -> Tensor:
        return (self.num_words - self.log_totals().exp()).log().to(self.theta.dtype)

    def log_probs(self, words: Tensor, log_partition: Tensor | None = None) -> Tensor:
        partition = self.log_partition() if log_partition is None else log_partition
        return loud(super().log_probs(words, partition.new_zeros(()))) - partition

    def predict(self, probs: Tensor, log_partition: Tensor | None = None) -> Tensor:
        partition = (self.log_partition() if log_partition is None else log_partition).double()
        either = (probs.double() * (-partition).exp()).sum(-1, keepdim=True)
        return (either - self.mix(probs, -partition)).log().to(probs.dtype)

    def scores(self, states: Tensor) -> Iterator[Tensor]:
        return map(loud, super().scores(states))


def loud(silence: Tensor) -> Tensor:
    """log(1 - e^silence)."""
    return (-silence.expm1()).log()
