"""What a chain of states answers about sentences: posteriors, paths, samples, missing words."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.inference import discrete, queries
from trellis.models.base import LanguageModel, Ranked
from trellis.types import Filtered, Posterior


class Infilled(NamedTuple):
    """A sentence with gaps, completed."""

    gaps: list[Ranked]  # for each gap, its most probable words given everything else
    best: str  # the words of the single most probable (states, words)
    samples: list[str]  # drawn jointly from the posterior


class ChainModel(LanguageModel):
    """A language model that is a chain of `num_states` states."""

    @property
    @abstractmethod
    def num_states(self) -> int: ...

    @abstractmethod
    def chain(self, batch: int = 1) -> queries.Chain:
        """The chain of `batch` new sentences."""

    @torch.no_grad()
    def posterior(self, tokens: Tensor, lengths: Tensor | None = None) -> Posterior:
        """p(z_t | x) of sentences [B, T], over all states."""
        chain = self.chain(len(tokens))
        potentials = chain.emission.potentials(tokens).widen(self.num_states)
        return discrete.smooth(chain.prior, chain.transition, potentials, lengths)

    @torch.no_grad()
    def filtered(self, tokens: Tensor) -> Filtered:
        """p(z_t | x_<=t) of sentences [B, T], over all states."""
        chain = self.chain(len(tokens))
        potentials = chain.emission.potentials(tokens).widen(self.num_states)
        return discrete.filter(chain.prior, chain.transition, potentials)

    @torch.no_grad()
    def best_path(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The most probable states [B, T] of sentences and log p(z, x) [B]."""
        chain = self.chain(len(tokens))
        return discrete.viterbi(chain.prior, chain.transition, chain.emission.potentials(tokens), lengths)

    @torch.no_grad()
    def sample(self, n: int = 1, max_tokens: int = 100, seed: int = 0) -> list[str]:
        """n sentences by ancestral sampling, each up to its end or max_tokens."""
        if n < 1 or max_tokens < 1:
            raise TrellisError(
                f"Nothing to sample: {n} sentences of at most {max_tokens} tokens; both must be above 0."
            )
        generator = torch.Generator().manual_seed(seed)
        chain = self.chain()
        states = discrete.sample_prior(chain.prior.probs[0], chain.transition, n, max_tokens, generator)
        return self.sentences(chain.emission.sample(states, generator))

    @torch.no_grad()
    def infill(self, text: str, n: int = 10, samples: int = 3, seed: int = 0, whole: bool = False) -> Infilled:
        """Complete a sentence whose missing words (never <eos>) are written ___; `whole`: it ends with the text."""
        tokens = self.encode_line(text, eos=whole, gap=GAP)
        gaps = (tokens[0] < 0).nonzero().flatten().tolist()
        if not gaps:
            raise TrellisError(f"The text {text!r} has no gap; write {GAP} for each missing word.")
        words = torch.arange(len(self.vocab), device=self.device) != self.vocab.eos
        chain = self.chain().only(words)
        if not bool(queries.log_marginal(chain, tokens) > -torch.inf):
            raise TrellisError(f"The model gives {text!r} no probability, whatever is in its gaps.")
        given = queries.word_given_rest(chain, tokens)[0]
        generator = torch.Generator().manual_seed(seed)
        drawn = queries.sample_gaps(self.chain(samples).only(words), tokens.expand(samples, -1), generator=generator)
        best, _ = queries.best_gaps(chain, tokens)
        return Infilled([self.rank(given[t], n) for t in gaps], self.sentences(best)[0], self.sentences(drawn))
