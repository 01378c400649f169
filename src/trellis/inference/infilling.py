"""The most probable words for the gaps of a sentence, by a search with exact upper bounds.

The states are summed out, p(x) = sum_z p(z, x), and the maximum is over the missing words alone. There is no recursion
over time for such a maximum of sums. The search fills the gaps from left to right. Suppose that x_<t is known or
filled, and that there is a gap at t. Then every completion with the word w at t has

    p(x) <= sum_z p(z_t = z, x_<t) p(w | z) u_t(z),    u_t(z) = sum_z' A(z, z') o_{t+1}(z') u_{t+1}(z'),

where o is the likelihood of a known word. At a later gap, o is max_w p(w | z'): every state chooses its own word. At
the last gap, u is the ordinary backward message, and the bound is exact. A partial filling is dropped if its bound does
not exceed the probability of the best filling found so far. The search starts with the better of two fillings: the
Viterbi words, and the most probable word of each gap's own posterior.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines.reference import to_dense
from trellis.inference.discrete import score, viterbi
from trellis.inference.queries import Chain, backward_messages, log_marginal, normalised
from trellis.types import Belief

LIMIT = 500  # partial fillings per sentence and gap; those with the largest bounds are kept
ENTRIES = 1 << 24  # numbers in memory at a time
ROUNDING = 1e-3  # nats by which a bound may be wrong


class Filled(NamedTuple):
    """Sentences with their gaps filled."""

    tokens: Tensor  # [B, T]
    log_probs: Tensor  # log p(words): [B] float64
    proved: Tensor  # [B] bool: no other words are more probable, up to rounding


class Partial(NamedTuple):
    """Partial fillings, with words in the first j gaps; the next gap is at step t."""

    sentence: Tensor  # [n]
    words: Tensor  # [n, j]
    belief: Tensor  # p(z_t | x_<t): [n, K]
    log_probs: Tensor  # log p(x_<t): [n] float64


class Extended(NamedTuple):
    """Partial fillings with a word in the next gap, in order of sentence and bound."""

    bound: Tensor  # [n] float64
    row: Tensor  # which partial filling: [n]
    word: Tensor  # [n]
    sentence: Tensor  # [n]
    rank: Tensor  # among the extensions of the same sentence: [n]

    def some(self, rows: Tensor) -> Extended:
        return Extended(*(part[rows] for part in self))


def best_words(chain: Chain, tokens: Tensor, lengths: Tensor | None, each: Tensor, limit: int = LIMIT) -> Filled:
    """Fill the n gaps (-1) of sentences [B, T] with the words that are jointly most probable.

    `each` [n] has the most probable word of each gap by itself. If a sentence has only one gap, this is the best
    word."""
    lengths = tokens.new_full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    missing = (tokens < 0) & (torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1))
    filled = tokens.masked_scatter(missing, each)
    found = Filled(filled, log_marginal(chain, filled, lengths), torch.ones_like(lengths, dtype=torch.bool))
    several, states = (missing.sum(1) > 1).nonzero().squeeze(-1), chain.transition.num_states
    for rows in several.split(max(1, ENTRIES // (limit * max(limit, states)))) if len(several) else ():
        some = chain._replace(prior=Belief(to_dense(chain.prior, states)[rows]))
        search = Search(some, tokens[rows], lengths[rows], missing[rows])
        for part, better in zip(found, search.run(Filled(*(part[rows] for part in found)), limit), strict=True):
            part[rows] = better
    return found


class Search:
    """The search for the best words, in several sentences side by side."""

    def __init__(self, chain: Chain, tokens: Tensor, lengths: Tensor, missing: Tensor) -> None:
        self.chain, self.tokens, self.lengths, self.missing = chain, tokens, lengths, missing
        self.emission = chain.gaps or chain.emission
        scores, self.word_of_state = self.emission.best()
        self.relaxed = chain.with_gaps(tokens, scores)
        self.messages = backward_messages(chain, self.relaxed, lengths)
        self.num_gaps = missing.sum(1)
        self.gaps = (~missing).long().argsort(stable=True)[:, : int(self.num_gaps.max())]  # [B, G]

    def run(self, first: Filled, limit: int) -> Filled:
        """The best filling of each sentence, starting from a first one."""
        tokens, best = self.or_viterbi(first)
        partial, dropped = self.begin(), torch.full_like(best, -torch.inf)
        for gap in range(self.gaps.shape[1]):
            found = self.extend(partial, gap, best, limit)
            if gap == 0:  # a bound below the probability of a filling has underflowed: nothing is proved
                dropped[found.bound[found.rank == 0] < best - ROUNDING] = torch.inf
            found = found.some(found.bound > best[found.sentence])
            over = found.some(found.rank == limit)
            dropped[over.sentence] = torch.maximum(dropped[over.sentence], over.bound)
            words = torch.cat([partial.words[found.row], found.word.unsqueeze(-1)], 1)
            complete = self.num_gaps[found.sentence] == gap + 1
            top = complete & (found.rank == 0)
            best[found.sentence[top]] = found.bound[top]
            tokens[found.sentence[top].unsqueeze(-1), self.gaps[found.sentence[top], : gap + 1]] = words[top]
            keep = ~complete & (found.rank < limit)
            if not bool(keep.any()):
                break
            partial = self.advance(partial, found.row[keep], words[keep])
        return Filled(tokens, best, dropped <= best)

    def or_viterbi(self, first: Filled) -> tuple[Tensor, Tensor]:
        """The more probable of the first filling and the Viterbi words, and its log-probability."""
        path, _ = viterbi(self.chain.prior, self.chain.transition, self.relaxed, self.lengths)
        tokens = torch.where(self.missing, self.word_of_state[path.clamp(min=0)], self.tokens)
        log_probs = log_marginal(self.chain, tokens, self.lengths)
        better = (log_probs > first.log_probs).unsqueeze(-1)
        return torch.where(better, tokens, first.tokens), torch.maximum(log_probs, first.log_probs)

    def begin(self) -> Partial:
        """Partial fillings without words: every sentence is read up to its first gap."""
        sentence = torch.arange(len(self.tokens), device=self.tokens.device)
        steps = self.tokens[:, : int(self.gaps[:, 0].max()) + 1]
        return self.read(sentence, self.gaps[:, :0], self.chain.prior, steps, self.gaps[:, 0] + 1)

    def advance(self, partial: Partial, row: Tensor, words: Tensor) -> Partial:
        """The partial fillings after reading each sentence from a gap, which now has a word, to the next gap."""
        sentence, gap = partial.sentence[row], partial.words.shape[1]
        here, there = self.gaps[sentence, gap], self.gaps[sentence, gap + 1]
        steps = here.unsqueeze(-1) + torch.arange(int((there - here).max()) + 1, device=here.device)
        tokens = self.tokens[sentence].gather(1, steps.clamp(max=self.tokens.shape[1] - 1))
        tokens[:, 0] = words[:, -1]
        found = self.read(sentence, words, Belief(partial.belief[row]), tokens, there - here + 1)
        return found._replace(log_probs=found.log_probs + partial.log_probs[row])

    def read(self, sentence: Tensor, words: Tensor, prior: Belief, tokens: Tensor, lengths: Tensor) -> Partial:
        """The partial fillings after reading `tokens` [n, L], of which each row ends in a gap. Their beliefs are
        distributions of the state at this gap, given the tokens before it; `log_probs` are those of `tokens` alone."""
        log_norms, belief = score(prior, self.chain.transition, self.chain.emission.potentials(tokens), lengths)
        states = to_dense(belief, self.chain.transition.num_states)
        return Partial(sentence, words, states, log_norms.sum(-1, dtype=torch.float64))

    def extend(self, partial: Partial, gap: int, best: Tensor, limit: int) -> Extended:
        """Extend every partial filling by the words that may fill its next gap. These are all words whose bound is
        above the best filling, up to the limit, and at least one word."""
        rest, scale = (part[partial.sentence, self.gaps[partial.sentence, gap]] for part in self.messages)
        weights = partial.belief.double() * rest
        known = (partial.log_probs + scale + weights.sum(-1).log()).unsqueeze(-1)
        probs, found = normalised(weights).to(rest.dtype), []
        for rows in torch.arange(len(probs), device=probs.device).split(max(1, ENTRIES // self.emission.num_symbols)):
            bounds = self.emission.predict(probs[rows]).double() + known[rows]
            above = bounds > best[partial.sentence[rows]].unsqueeze(-1)
            bound, word = bounds.topk(int(above.sum(-1).max().clamp(1, limit + 1)))
            found.append((bound, rows.unsqueeze(-1).expand_as(word), word))
        bound, row, word = (torch.cat([part.flatten() for part in parts]) for parts in zip(*found, strict=True))
        return in_order(bound, row, word, partial)


def in_order(bound: Tensor, row: Tensor, word: Tensor, partial: Partial) -> Extended:
    """Sort extensions [n] by sentence, then by bound."""
    order = bound.argsort(descending=True)
    order = order[partial.sentence[row[order]].argsort(stable=True)]
    sentence = partial.sentence[row[order]]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(sentence, sentence)
    return Extended(bound[order], row[order], word[order], sentence, rank)
