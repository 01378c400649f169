"""The most probable sequences that satisfy a constraint: jointly with their states (Viterbi), or with the states summed
out.

With the states summed out, the search is that of `infilling`. Relaxed messages let every state choose its own tokens,

    u_t(s, z) = max([may end] end(z), max_c best_c(z) sum_z' A(z, z') u_{t+1}(s', z')),

where best_c(z) is the probability of the most probable token of class c in state z; the other symbols are those of
`constrained`. So sum_z p(z | x_<=t) u_t(s, z) is an upper bound on the probability of every completion. A prefix is
dropped if its bound does not exceed the probability of the best sequence found so far. The search starts with the
sequence of the Viterbi path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.constrained import ENTRIES, Position, Product, log_dot
from trellis.inference.infilling import LIMIT, ROUNDING


class Explained(NamedTuple):
    """The tokens and states that are jointly most probable."""

    tokens: list[int]
    states: list[int]  # one per token, and one for <eos>
    log_prob: float  # log p(tokens, states)


class Best(NamedTuple):
    """The most probable tokens."""

    tokens: list[int]
    log_prob: float  # log p(tokens), with the states summed out, <eos> included
    proved: bool  # whether no other tokens are more probable, up to rounding


class Step(NamedTuple):
    """Pointers of one step of the Viterbi algorithm, for each next state of the automaton and of the chain."""

    before: Tensor  # the state of the chain that emits the token: [n, K]
    edge: Tensor  # the edge that this state takes: [n, K]
    source: Tensor  # for each edge, the index of the state of the automaton that it leaves
    label: Tensor  # ... and its label


@torch.no_grad()
def most_probable_path(product: Product, position: Position) -> Explained | None:
    """The most probable continuation of one sequence, with its states; None if no continuation satisfies the
    constraint."""
    scores, states, weights = position.ahead.log(), position.states, product.label_best().log()
    first, ending, trace = int(position.steps[0]), product.ends.log(), list[Step]()
    best: tuple[float, int, int, int] | None = None  # log p, steps, state of the automaton (its index), state
    for t in range(first, product.span.most + 1):
        for row in product.lattice.may_end(torch.full_like(states, t), states).nonzero().flatten().tolist():
            value, state = (scores[row] + ending).max(0)
            if float(value) > (-torch.inf if best is None else best[0]):
                best = float(value), len(trace), row, int(state)
        source, label, index, states = product.lattice.onward(t, states)
        if not len(states):
            break
        is_last = product.span.end is None and t + 1 == product.span.most
        scores, step = advanced(product, scores, weights, source, label, index, is_last)
        trace.append(step)
    return None if best is None else traced(product, best, trace)


def advanced(
    product: Product, scores: Tensor, weights: Tensor, source: Tensor, label: Tensor, index: Tensor, is_last: bool
) -> tuple[Tensor, Step]:
    """One step: the best edge into each state of the automaton, then the best transition of the chain, unless it is the
    last step of a stream."""
    moved = scores.new_full((int(index.max()) + 1, scores.shape[1]), -torch.inf)
    edges = torch.zeros(moved.shape, dtype=torch.int64, device=moved.device)
    for edge, (row, one, number) in enumerate(zip(source.tolist(), index.tolist(), label.tolist(), strict=True)):
        values = scores[row] + weights[number]
        edges[one] = torch.where(values > moved[one], edge, edges[one])
        moved[one] = torch.maximum(moved[one], values)
    if is_last:
        return moved, Step(torch.arange(moved.shape[1], device=moved.device).expand_as(moved), edges, source, label)
    pieces = moved.split(max(1, ENTRIES // scores.shape[1] ** 2))
    scores, before = (torch.cat(parts) for parts in zip(*map(product.transition.max_product, pieces), strict=True))
    return scores, Step(before, edges, source, label)


def traced(product: Product, best: tuple[float, int, int, int], trace: Sequence[Step]) -> Explained:
    """Follow the pointers back from the best end."""
    log_prob, steps, row, state = best
    states, tokens = [state], list[int]()
    for step in reversed(trace[:steps]):
        state = int(step.before[row, state])
        edge = int(step.edge[row, state])
        allowed = product.lattice.labels[step.label[edge]][product.emission.classes]
        words = product.likelihoods.columns(torch.tensor([state], device=product.device))[0]
        tokens.append(int((words * allowed).argmax()))
        states.append(state)
        row = int(step.source[edge])
    return Explained(tokens[::-1], states[::-1] if product.span.end is not None else states[:0:-1], log_prob)


@torch.no_grad()
def most_probable_tokens(product: Product, position: Position, limit: int = LIMIT) -> Best | None:
    """The most probable continuation of one sequence; None if there is none.

    At most `limit` prefixes are kept per length. The result is proved unless this limit dropped a prefix whose bound
    exceeds the probability of the result."""
    first = most_probable_path(product, position)
    if first is None:
        return None
    best = Best(first.tokens, log_prob_of(product, position, first.tokens), True)
    size, end = product.num_symbols, product.span.end
    if end is None and int(position.steps[0]) == product.span.most:
        return best  # nothing follows
    dropped = -torch.inf
    words = torch.zeros(1, 0, dtype=torch.int64, device=product.device)
    known = torch.zeros(1, dtype=torch.float64, device=product.device)
    while len(words):
        pieces = torch.arange(len(words), device=product.device).split(max(1, ENTRIES // size))
        bounds = torch.cat([product.joint(position.some(rows), product.relaxed).double() for rows in pieces])
        bounds += known.unsqueeze(-1)
        if not words.shape[1] and float(bounds.max()) < best.log_prob - ROUNDING:
            dropped = torch.inf  # a bound below the probability of a sequence has underflowed: nothing is proved
        last = int(position.steps[0]) == product.span.most - (end is None)
        complete = bounds if end is None else bounds[:, end : end + 1]
        if (end is not None or last) and float(complete.max()) > best.log_prob:
            at, width = int(complete.argmax()), complete.shape[1]
            tokens = words[at // width].tolist() + [at % width] * (end is None)
            best = best._replace(tokens=tokens, log_prob=float(complete.max()))
        if last:
            break
        if end is not None:
            bounds[:, end] = -torch.inf
        flat = bounds.flatten()
        bound, chosen = flat.topk(min(int((flat > best.log_prob).sum()), limit + 1))
        dropped = max(dropped, float(bound[-1])) if len(chosen) > limit else dropped
        row, token = chosen[:limit] // size, chosen[:limit] % size
        words = torch.cat([words[row], token.unsqueeze(-1)], -1)
        position, log_probs = product.read(position.some(row), token)
        known = known[row] + log_probs
    return best._replace(proved=dropped <= best.log_prob)


def log_prob_of(product: Product, position: Position, tokens: Sequence[int]) -> float:
    """log p(tokens, then the end | tokens so far) of one sequence."""
    total = 0.0
    for token in tokens:
        position, log_prob = product.read(position, torch.tensor([token], device=product.device))
        total += float(log_prob)
    return total + float(log_dot(position.ahead, product.ends))
