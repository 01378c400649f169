"""Emission updates of a factorial HMM given its mean field; each raises the emission term of the bound."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from trellis.families.factorial.loglinear import Slope, emission_slope
from trellis.families.factorial.mean_field import Field, word_places
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.parameters import LayeredParams
from trellis.types import Batch

LONGEST = 1.0  # maximum step of iterative scaling


class Seen(NamedTuple):
    """Tokens and their mean field; a missing word is -1."""

    words: Tensor  # [n]
    probs: Tensor  # [n, S]: q, the probabilities of states
    tilts: Tensor  # [n, S]: c, see `mean_field`

    @classmethod
    def of(cls, batch: Batch, field: Field) -> Self:
        """The observed words of a batch with their mean field."""
        places = word_places(batch.tokens, batch.lengths)
        words, there = batch.tokens.flatten()[places], places.to(field.probs.device, non_blocking=True)
        probs, tilts = (value.flatten(0, 1).index_select(0, there) for value in field)
        return cls(words.to(probs.device, non_blocking=True), probs, tilts)

    def visits(self, num_words: int) -> Tensor:
        """Expected visits of (word, state): [V, S]."""
        return self.probs.new_zeros(num_words, self.probs.shape[1]).index_add_(0, self.words, self.probs)


@torch.no_grad()
def guess_visits(params: LayeredParams) -> Tensor:
    """Initial visits per token, with independent layers and equally frequent states: [V, S]."""
    shares = torch.cat([torch.full((size,), 1 / size) for size in params.sizes]).to(params.bias)
    return (params.unigram.unsqueeze(-1) + params.theta()).softmax(0) * shares


@torch.no_grad()
def scale(params: LayeredParams, seen: Seen, running: Tensor, pseudocount: float) -> None:
    """Iterative scaling: theta_xmk += log(target / expected) / M. If the target were the visits of the batch itself,
    this would raise the bound of the batch. Here, the target is the running visits per token [V, S], rescaled so that
    words have their frequency in the corpus, freq, and states their share of the batch, share' (their share of the
    running visits is share):
        freq_x (running_xmk + pseudocount share_mk) / (running_x + pseudocount) share'_mk / share_mk.
    The pseudocount shrinks rare words towards the overall state frequencies. With one layer this is stepwise EM."""
    slope, tiny = emission_slope(params.emission(), *seen), torch.finfo(running.dtype).tiny
    share = running.sum(0).clamp(min=tiny)
    count = running[:, : params.sizes[0]].sum(-1, keepdim=True)  # the same for every layer
    words = (running + pseudocount * share) * (params.unigram.exp().unsqueeze(-1) / (count + pseudocount))
    wanted, expected = words * (seen.probs.mean(0) / share), slope.expected / len(seen.words)
    ratio = wanted.clamp(min=tiny).log() - expected.clamp(min=tiny).log()
    params.words.add_((ratio / len(params.sizes)).clamp(-LONGEST, LONGEST))


def descend(params: LayeredParams, slope: Slope, tokens: int) -> None:
    """Accumulate the gradient of the negative bound per token in the parameters."""
    torch.autograd.backward([params.theta(), params.bias + 0], [-slope.theta / tokens, -slope.bias / tokens])


def climb(model: FHMM, weights: Iterable[nn.Parameter], seen: Seen, iterations: int, pull: float, near: bool) -> None:
    """Maximise the bound per token minus pull / 2 |weights - centre|^2 by L-BFGS. The centre is the old weights if
    `near`, else 0."""
    weights = list(weights)
    centres = [weight.detach().clone() if near else torch.zeros_like(weight) for weight in weights]
    optimizer = torch.optim.LBFGS(weights, max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        slope = emission_slope(model.params.emission(), *seen)
        descend(model.params, slope, len(seen.words))
        loss = -slope.value / len(seen.words)
        for weight, centre in zip(weights, centres, strict=True):
            if weight.grad is not None:
                weight.grad.add_(weight.detach() - centre, alpha=pull)
            loss = loss + pull / 2 * (weight.detach() - centre).square().sum()
        return loss

    optimizer.step(closure)
