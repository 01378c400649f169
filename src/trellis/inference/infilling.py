"""The most probable words of the gaps in a sentence, by best-first search.

Exact: the states are summed out, p(x) = sum_z p(z, x), and the maximum is taken over the missing words alone. Since the
sum is inside the maximum, no recursion over time finds it. The search fills gaps from left to right. With x_<t known or
filled and a gap at t, every completion that puts w at t has

    p(x) <= sum_z p(z_t = z, x_<t) p(w | z) u_t(z),    u_t(z) = sum_z' A(z, z') o_{t+1}(z') u_{t+1}(z'),

where o is the likelihood of a known word, and max_w p(w | z') at a later gap: u lets every state choose its own words.
At the last gap u is the ordinary backward message and the bound is exact. The search first fills greedily by the bound,
then expands the partial filling with the largest bound until none exceeds the best filling found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines.reference import to_dense
from trellis.inference.discrete import score
from trellis.inference.queries import Chain, backward_messages, log_marginal, normalised
from trellis.types import Belief

LIMIT = 1000  # partial fillings to expand per sentence
ROUNDING = 1e-3  # nats by which scaled arithmetic may miss a bound


class Filled(NamedTuple):
    """Sentences with their gaps filled."""

    tokens: Tensor  # [B, T]
    log_probs: Tensor  # log p(words): [B] float64
    proved: Tensor  # [B] bool: no other words are more probable (up to rounding)
    expanded: Tensor  # [B] int64: partial fillings expanded


@dataclass
class Search:
    """The search for the gaps of one sentence: partial fillings (bound, words), and the best filling found."""

    row: int
    gaps: list[int]
    words: list[int]  # the best filling found, and its log-probability
    log_prob: float
    open: list[tuple[float, list[int]]] = field(default_factory=lambda: [(math.inf, [])])
    expanded: int = 0
    dived: bool = False  # whether the greedy filling is complete
    proved: bool = True

    def pop(self) -> list[int]:
        """The partial filling to expand: the longest while filling greedily, then the one with the largest bound."""
        chosen = max(self.open, key=lambda node: (not self.dived and len(node[1]), node[0]))
        self.open.remove(chosen)
        self.expanded += 1
        return chosen[1]

    def push(self, words: list[int], bounds: list[float], following: list[int], limit: int) -> None:
        """Add the words that may follow a partial filling, most probable first, with their bounds."""
        if not words and bounds[0] < self.log_prob - ROUNDING:  # underflow: the bounds do not hold
            self.open, self.proved = [], False
            return
        complete = len(words) + 1 == len(self.gaps)
        if complete and bounds[0] > self.log_prob:
            self.log_prob, self.words = bounds[0], [*words, following[0]]
        if not complete:
            self.open += [(bound, [*words, word]) for bound, word in zip(bounds, following, strict=True)]
        self.dived |= complete
        self.open = sorted(node for node in self.open if node[0] > self.log_prob)[self.expanded - limit - 1 :]
        self.proved = not self.open


def best_words(chain: Chain, tokens: Tensor, lengths: Tensor | None, given: Tensor, limit: int = LIMIT) -> Filled:
    """Fill the gaps (-1) of sentences [B, T] with the words that are jointly most probable; `given` are the posteriors
    of each gap, log p(x_t | known words) [B, T, V], which decide where there is only one gap."""
    lengths = tokens.new_full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    missing = (tokens < 0) & (torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1))
    filled = torch.where(missing, given.argmax(-1), tokens)
    log_probs = log_marginal(chain, filled, lengths)
    searches = [
        Search(row, gaps, filled[row, gaps].tolist(), log_prob)
        for row, log_prob in enumerate(log_probs.tolist())
        if len(gaps := missing[row].nonzero().flatten().tolist()) > 1
    ]
    if searches:
        run(searches, chain, tokens, lengths, limit)
    proved, expanded = torch.ones_like(lengths, dtype=torch.bool), torch.zeros_like(lengths)
    for search in searches:
        filled[search.row, search.gaps] = filled.new_tensor(search.words)
        log_probs[search.row], proved[search.row] = search.log_prob, search.proved
        expanded[search.row] = search.expanded
    return Filled(filled, log_probs, proved, expanded)


def run(searches: list[Search], chain: Chain, tokens: Tensor, lengths: Tensor, limit: int) -> None:
    """Run all searches side by side, expanding one partial filling of each at a time."""
    words = chain.gaps or chain.emission
    messages = backward_messages(chain, chain.with_gaps(tokens, words.best()[0]), lengths)
    while active := [search for search in searches if search.open and search.expanded < limit]:
        nodes = [search.pop() for search in active]
        bounds = extended(chain, tokens, messages, active, nodes)
        best = bounds.new_tensor([search.log_prob for search in active])
        useful = int((bounds > best.unsqueeze(-1)).sum(-1).max().clamp(1, limit + 1))
        for search, node, *found in zip(active, nodes, *(part.tolist() for part in bounds.topk(useful)), strict=True):
            search.push(node, *found, limit)


def extended(
    chain: Chain, tokens: Tensor, messages: tuple[Tensor, Tensor], searches: list[Search], nodes: list[list[int]]
) -> Tensor:
    """Upper bounds on log p of any completion of each partial filling, for every word at its next gap: [n, V]."""
    rows = tokens.new_tensor([search.row for search in searches])
    ends = tokens.new_tensor([search.gaps[len(words)] for search, words in zip(searches, nodes, strict=True)])
    prefixes = tokens[rows, : int(ends.max()) + 1]
    for prefix, search, words in zip(prefixes, searches, nodes, strict=True):
        prefix[search.gaps[: len(words)]] = tokens.new_tensor(words)
    states = chain.transition.num_states
    prior = Belief(to_dense(chain.prior, states)[rows])
    log_norms, belief = score(prior, chain.transition, chain.emission.potentials(prefixes), ends + 1)
    rest, scale = (part[rows, ends] for part in messages)
    weights = to_dense(belief, states).double() * rest
    predicted = (chain.gaps or chain.emission).predict(normalised(weights).to(rest.dtype)).double()
    return predicted + (log_norms.sum(-1, dtype=torch.float64) + scale + weights.sum(-1).log()).unsqueeze(-1)
