"""Many samples of an interpolated n-gram model, without the probabilities of all words.

p(x | c) = q(x | c) + γ(c) p(x | c'), where q is positive only for the words seen after c, and c' is c without its first
word. A word is therefore drawn from q(· | c) with probability 1 - γ(c), and from p(· | c') otherwise."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.devices import draw_uniform, seeded
from trellis.families.ngram.kneser_ney import links
from trellis.families.ngram.trie import NONE, Trie
from trellis.transitions.base import search_cumulative

if TYPE_CHECKING:
    from trellis.families.ngram.model import NGram

ROUNDING = 1e-9  # tolerance of probabilities


class Sampler(NamedTuple):
    """The n-grams of a model with their own probabilities q."""

    trie: Trie
    words: Tensor  # [V]: running sum of the probabilities of single words
    sums: Tensor  # [N - V + 1]: sums of q over all preceding n-grams of two or more words

    @classmethod
    def of(cls, model: NGram) -> Sampler | None:
        """The sampler of a model; None if the model is not interpolated, like those of some ARPA files."""
        trie, (parents, suffixes) = model.trie, links(model.trie)
        probs, backoffs = model.log_probs.double().exp().cpu().numpy(), model.backoffs.double().exp().cpu().numpy()
        levels, own = list(pairwise(trie.bounds)), [np.empty(0)]
        for k in range(1, len(levels)):
            below, context = slice(*levels[k - 1]), backoffs[slice(*levels[k - 1])]
            found = probs[slice(*levels[k])] - context[parents[k]] * probs[below][suffixes[k]]
            left = 1 - np.bincount(parents[k], found, len(context)) - context
            if (suffixes[k] < 0).any() or found.min(initial=0.0) < -ROUNDING or np.abs(left).max() > ROUNDING:
                return None
            own.append(found.clip(min=0.0))
        sums = np.concatenate([[0.0], np.concatenate(own).cumsum()])
        return cls(trie, *(torch.from_numpy(a).to(model.device) for a in (probs[: trie.sizes[0]].cumsum(), sums)))

    def draw(self, context: Tensor, uniform: Tensor) -> Tensor:
        """The next word after each context [B, n - 1], given uniform numbers [B].

        A number that chooses a shorter context is rescaled, so that it is uniform again."""
        found = torch.full_like(uniform, NONE, dtype=torch.int64)
        for nodes in reversed(self.trie.walk(context)[: context.shape[1]]):
            bounds = torch.stack([nodes[:, -1], nodes[:, -1] + 1]) * self.trie.sizes[0]
            first, last = torch.searchsorted(self.trie.keys, bounds)
            own = self.sums[last] - self.sums[first]
            place = torch.searchsorted(self.sums, self.sums[first] + uniform, right=True) - 1
            words = self.trie.keys[torch.minimum(place, last - 1).clamp(min=0)] % self.trie.sizes[0]
            chosen = (found == NONE) & (uniform < own)
            found = torch.where(chosen, words, found)
            uniform = torch.where(uniform < own, uniform, (uniform - own) / (1 - own))
        return torch.where(found == NONE, search_cumulative(self.words, uniform), found)


def sample_tokens(model: NGram, sampler: Sampler, n: int, max_tokens: int, seed: int) -> Tensor:
    """Sample n token sequences, as `LanguageModel.sample_tokens` does."""
    generator, context, drawn = seeded(seed), model.start(n), list[Tensor]()
    ended = torch.zeros(n, dtype=torch.bool, device=model.device)
    while len(drawn) < max_tokens and not bool(ended.all()):
        words = sampler.draw(context, draw_uniform((n,), model.device, generator))
        context = torch.cat([context, words[:, None]], 1)[:, 1:]
        ended |= words == model.vocab.eos
        drawn.append(words)
    return torch.stack(drawn, 1)
