"""Joint emissions of several layers: log-linear, p(x | z_1 ... z_M) = exp(bias_x + sum_m theta[x, m, z_m]) / Z(z), or
noisy-or, where a word is emitted unless the leak and every layer fail to activate it."""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from trellis.devices import draw_uniform
from trellis.transitions.base import invert
from trellis.transitions.kronecker import outer, outer_sum
from trellis.types import Potentials

ENTRIES = 1 << 25  # table entries in memory at a time
HELD = {"cpu": 1 << 23, "cuda": 1 << 29}  # tokens x words in memory at a time
CACHE = {"cpu": 1 << 18, "cuda": 1 << 29}  # ... and processed at a time
SMALLEST = {torch.float32: 1e-6, torch.float64: 1e-30}  # see `floor`


class LogLinear:
    """Log-linear emissions with weights theta [V, S], the layers concatenated (S = sum_m K_m), and bias [V]. There are
    K = prod_m K_m joint states."""

    def __init__(self, theta: Tensor, bias: Tensor, sizes: Sequence[int]) -> None:
        self.theta, self.bias, self.sizes = theta, bias, tuple(sizes)

    @property
    def num_words(self) -> int:
        return len(self.bias)

    @property
    def num_states(self) -> int:
        return math.prod(self.sizes)

    def layers(self) -> tuple[Tensor, ...]:
        """theta of each layer: [V, K_m]."""
        return self.theta.split(self.sizes, -1)

    def log_partition(self) -> Tensor:
        """log Z of every joint state: [K]."""
        return self.log_totals().to(self.theta.dtype)

    def log_totals(self) -> Tensor:
        """log sum_x exp(bias_x + sum_m theta[x, m, z_m]) of every joint state z: [K], in float64. It is computed as one
        matrix product of the two `halves`."""
        shift = self.theta.detach().amax(0)
        left, right = self.halves(shift)
        weight = (self.bias.double() - self.bias.detach().max()).exp()
        total = (left.T @ (right * weight.unsqueeze(-1))).flatten().log() + self.bias.detach().max()
        return total + outer_sum(shift.double().split(self.sizes))

    def halves(self, shift: Tensor) -> tuple[Tensor, Tensor]:
        """exp(sum_m (theta - shift)[x, m, z_m]), where the sum is over the first half of the layers, for their K' joint
        states; the same for the other half with K'' joint states: [V, K'], [V, K'']."""
        layers = (self.theta.double() - shift).exp().split(self.sizes, -1)
        middle = len(layers) // 2
        ones = torch.ones_like(layers[0][:, :1])
        return outer([ones, *layers[:middle]]), outer(layers[middle:])

    def log_probs(self, words: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """log p(word | z) of some words: [n] -> [n, K]."""
        partition = self.log_partition() if log_partition is None else log_partition
        scores = outer_sum([layer[words] for layer in self.layers()])
        return scores + self.bias[words].unsqueeze(-1) - partition

    def potentials(self, tokens: Tensor, log_partition: Tensor | None = None) -> Potentials:
        """The potentials of tokens [B, T] over joint states; -1 is a missing word."""
        rows = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)
        words = tokens.flatten().clamp(min=0)
        return Potentials(self.log_probs(words, log_partition), rows.masked_fill(tokens < 0, -1))

    def predict(self, probs: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """log p(word) under a distribution over joint states: [B, K] -> [B, V]."""
        partition = self.log_partition() if log_partition is None else log_partition
        return self.mix(probs, -partition).log().to(probs.dtype)

    def mix(self, probs: Tensor, log_weights: Tensor) -> Tensor:
        """sum_z p(z) weight(z) exp(score of x in z), in float64: [B, K], [K] -> [B, V]."""
        shift = self.theta.amax(0)
        left, right = self.halves(shift)
        weights = probs.double() * (outer_sum(shift.double().split(self.sizes)) + log_weights).exp()
        spoken = [((left @ w.view(left.shape[1], -1)) * right).sum(-1) for w in weights]
        return torch.stack(spoken) * self.bias.double().exp()

    def log_partition_at(self, states: Tensor) -> Tensor:
        """log Z of joint states, given by the state of each layer: [n, M] -> [n]."""
        return torch.cat([scores.logsumexp(-1) for scores in self.scores(states)])

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample one word from each joint state, given by the state of each layer: [n, M] -> [n]."""
        uniform, draws = draw_uniform(states.shape[:1], states.device, generator), []
        for scores in self.scores(states):
            draws.append(invert(scores.softmax(-1), uniform[: len(scores)]))
            uniform = uniform[len(scores) :]
        return torch.cat(draws)

    def scores(self, states: Tensor) -> Iterator[Tensor]:
        """bias + sum_m theta[:, m, z_m] of joint states [n, M], in blocks of states: [n', V]."""
        columns = states + torch.tensor((0, *self.sizes[:-1]), device=states.device).cumsum(0)
        table = self.theta.T.contiguous()
        for piece in columns.split(max(1, ENTRIES // self.num_words)):
            yield self.bias + sum(table[column] for column in piece.unbind(-1))


class NoisyOr(LogLinear):
    """p(x | z) = (1 - (1 - leak_x) prod_m (1 - lambda[x, m, z_m])) / Z(z), for logits of lambda [V, S] and leak [V].

    The probability that x stays inactive, silence_x(z), is log-linear, so Z(z) = V - sum_x silence_x(z) also takes one
    matrix product. The mean-field bound on E log Z does not exist here: inference is exact, over joint states."""

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


def floor(dtype: torch.dtype, layers: int) -> float:
    """A constant that is added to every factor a_m(y) of the bound in `emission_slope`, so that products over layers
    stay positive and can be divided by a factor. The bound remains valid, since this only raises a_m(y)."""
    return max(SMALLEST[dtype], torch.finfo(dtype).tiny ** (0.8 / layers))


def with_floor(scores: Tensor, shift: Tensor) -> Tensor:
    """exp(theta - shift), transposed, with a last row of ones for the floor: [V, K] -> [K + 1, V]."""
    return torch.nn.functional.pad((scores - shift).exp(), (0, 1), value=1.0).T.contiguous()


class Slope(NamedTuple):
    """A value and its gradient."""

    value: Tensor  # scalar, float64
    theta: Tensor  # [V, S]
    bias: Tensor  # [V]
    expected: Tensor  # [V, S]: expected visits under the model, a term of theta's gradient


@torch.no_grad()
def emission_slope(emission: LogLinear, words: Tensor, probs: Tensor, tilts: Tensor) -> Slope:
    """The emission term of the bound, which is concave in theta and bias, and its gradient:
        sum_t [bias_x + sum_mk q (theta_xmk - c) - log sum_y e^bias_y prod_m a_m(y)],
    where a_m(y) = sum_k q_mk exp(theta_ymk - c_mk). Each token t has a word x in `words` [n], the state probabilities q
    in `probs` [n, S], and the tilts c in `tilts` [n, S].

    Since the tilts are optimal, this is also the gradient of the bound itself."""
    shift, peak = emission.theta.amax(0), emission.bias.max()
    prior = (emission.bias - peak).exp()
    tables = [with_floor(*pair) for pair in zip(emission.layers(), shift.split(emission.sizes), strict=True)]
    value, bias = words.new_zeros((), dtype=torch.float64), torch.zeros_like(prior)
    drawn = [torch.zeros_like(table) for table in tables]  # [K_m + 1, V]
    count = max(1, CACHE[words.device.type] // emission.num_words)
    for w, q, c in zip(words.split(count), probs.split(count), tilts.split(count), strict=True):
        parts = (q * (shift - c).exp()).split(emission.sizes, -1)
        weights = [torch.nn.functional.pad(part, (0, 1), value=floor(part.dtype, len(parts))) for part in parts]
        activities = [a @ table for a, table in zip(weights, tables, strict=True)]
        product = reduce(torch.mul, activities, prior)
        total = product.sum(-1, keepdim=True)
        gain = (q * (emission.theta[w] - c)).sum(-1) + emission.bias[w] - peak - total.squeeze(-1).log()
        product = product.div_(total)
        value.add_(gain.sum(dtype=torch.float64))
        bias.sub_(product.sum(0))
        for layer, a, weight in zip(drawn, activities, weights, strict=True):
            layer.addmm_(weight.T, torch.div(product, a, out=a))
    expected = torch.cat([(layer * table)[:-1] for layer, table in zip(drawn, tables, strict=True)]).T
    theta = torch.zeros_like(emission.theta).index_add_(0, words, probs).sub_(expected)
    bias.index_add_(0, words, torch.ones_like(words, dtype=prior.dtype))
    return Slope(value, theta, bias, expected)
