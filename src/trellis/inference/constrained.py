"""Exact inference in the product of a hidden Markov chain and an automaton: sequences that satisfy a constraint.

After t tokens the automaton is in state s. With z the state of the chain that emits the next token,

    b_t(s, z) = [may end] end(z) + sum_c e_c(z) m_{t+1}(s', z),    m_t(s, z) = sum_z' A(z, z') b_t(s, z'),

where s' is the state after s and a token of class c, and e_c(z) the probability that z emits a token of that class. A
sentence may end after `least` to `most` tokens where the automaton accepts, with end(z) = p(<eos> | z); a stream has
`most` tokens, with end(z) = 1 after the last. Then p(constraint | x_<=t) = sum_z p(z | x_<=t) b_t(s, z).

Only pairs (t, s) are computed that can be reached from the first state and can still be accepted. The messages m do not
depend on a prompt. Each is stored with a log-scale of its own, so that improbable constraints do not underflow. Classes
that lead from s to the same s' are one edge, and equal sets of classes share their sums over tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints.automaton import Automaton
from trellis.devices import draw_uniform
from trellis.emissions.classed import Classed, Likelihoods
from trellis.engines.reference import to_dense
from trellis.errors import TrellisError
from trellis.inference.queries import Chain, normalised
from trellis.transitions.base import invert

LARGEST = 1 << 30  # numbers in the stored messages
ENTRIES = 1 << 24  # numbers in memory at a time, besides


class Span(NamedTuple):
    """How long sequences are, and the token that ends them."""

    least: int
    most: int
    end: int | None  # None: a stream of exactly `most` tokens


class Position(NamedTuple):
    """Where B sequences are."""

    ahead: Tensor  # p(z | tokens so far) of the state that emits the next token: [B, K]
    steps: Tensor  # tokens so far: [B]
    states: Tensor  # of the automaton: [B]

    def some(self, rows: Tensor | slice) -> Position:
        return Position(*(part[rows] for part in self))


class Messages(NamedTuple):
    """m_t(s, z) of every pair (t, s), divided by exp of its scale; the last row, for all other pairs, is zero."""

    values: Tensor  # [R + 1, K]
    scales: Tensor  # [R + 1] float64


class Product:
    """The product of a chain (prior of one sequence) and an automaton."""

    @torch.no_grad()
    def __init__(self, chain: Chain, automaton: Automaton, span: Span, likelihoods: Likelihoods | None = None) -> None:
        self.transition, self.span = chain.transition, span
        self.prior = to_dense(chain.prior, chain.transition.num_states)[:1]
        self.device, self.dtype = self.prior.device, self.prior.dtype
        number, live = len(automaton.moves), automaton.live()
        moves, classes = np.where(live[automaton.moves], automaton.moves, number), automaton.classes
        if span.end is not None:  # <eos> is a class of its own, which the automaton never reads
            classes = classes.copy()
            classes[span.end] = moves.shape[1]
            moves = np.column_stack([moves, np.full(number, number)])
        self.moves, accepting = (
            np.vstack([moves, np.full_like(moves[:1], number)]),
            np.append(automaton.accepting, False),
        )
        self.accepting, self.after = self.tensor(accepting), self.tensor(self.moves)  # [S + 1], [S + 1, C]
        self.likelihoods = Likelihoods.of(chain.emission) if likelihoods is None else likelihoods
        self.emission = Classed(self.likelihoods, self.tensor(classes), self.moves.shape[1])
        self.totals = self.emission.totals()  # [C, K]
        self.ends = self.likelihoods.rows(self.tensor(np.array([span.end])))[0] if span.end is not None else None
        self.find_edges()
        self.find_pairs(accepting)
        self.sums = self.masks.to(self.dtype) @ self.totals  # p(a token of the label | z): [L, K]
        self.messages = self.compute(self.sums, relaxed=False)

    @property
    def num_symbols(self) -> int:
        return self.likelihoods.num_symbols

    def tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def find_edges(self) -> None:
        """The edges of every state, in order: their sets of classes (labels) and where they lead."""
        dead, labels, rows, counts = len(self.moves) - 1, dict[bytes, int](), list[tuple[int, int]](), list[int]()
        masks = list[np.ndarray]()
        for state in range(dead):
            targets = [int(target) for target in np.unique(self.moves[state]) if target != dead]
            for target in targets:
                mask = self.moves[state] == target
                number = labels.setdefault(mask.tobytes(), len(labels))
                masks += [mask] if number == len(masks) else []
                rows.append((number, target))
            counts.append(len(targets))
        edges = np.array(rows, np.int64).reshape(-1, 2)
        self.label, self.target = self.tensor(edges[:, 0]), self.tensor(edges[:, 1])
        self.counts = self.tensor(np.array([*counts, 0]))
        self.begins = self.counts.cumsum(0) - self.counts
        self.masks = self.tensor(np.stack(masks) if masks else np.zeros((0, self.moves.shape[1]), bool))  # [L, C]

    def find_pairs(self, accepting: np.ndarray) -> None:
        """The pairs (t, s) that can be reached and can accept: `needed[t]`, and their rows `place[t, s]`."""
        (least, most, end), dead = self.span, len(self.moves) - 1
        reach, alive = np.zeros((2, most + 2, dead + 1), bool)
        reach[0, 0] = True
        for t in range(most):
            reach[t + 1, np.unique(self.moves[reach[t]])] = True
        for t in range(most, -1, -1):
            ending = accepting if t >= least and (end is not None or t == most) else np.zeros_like(accepting)
            alive[t] = ending | alive[t + 1][self.moves].any(1)
        kept = reach & alive
        kept[:, dead] = False
        size = int(kept.sum())
        if size * self.transition.num_states > LARGEST:
            raise TrellisError(
                f"The constraint needs {size:,} messages of {self.transition.num_states:,} states, more than fit into "
                "memory; shorten the sentences or simplify the constraint."
            )
        place = np.full(kept.shape, size)
        place[kept] = np.arange(size)
        self.needed = [self.tensor(np.flatnonzero(row)) for row in kept[:-1]]
        self.place = self.tensor(place)

    def label_best(self) -> Tensor:
        """p(its most probable token of the label | z): [L, K]."""
        best = self.emission.best()
        return torch.stack([best[mask].amax(0) for mask in self.masks]) if len(self.masks) else best[:0]

    def may_end(self, steps: Tensor, states: Tensor) -> Tensor:
        least, most, end = self.span
        return self.accepting[states] & (steps >= least) & (steps <= most if end is not None else steps == most)

    def end_weights(self) -> Tensor:
        return torch.ones_like(self.prior[0]) if self.ends is None else self.ends

    def compute(self, weights: Tensor, relaxed: bool) -> Messages:
        """The messages of all pairs, from the last step to the first; `relaxed` takes maxima over tokens, not sums."""
        size = int(sum(len(states) for states in self.needed))
        values = self.prior.new_zeros(size + 1, self.transition.num_states)
        scales = torch.full((size + 1,), -torch.inf, dtype=torch.float64, device=self.device)
        found = Messages(values, scales)
        for t in range(self.span.most, -1, -1):
            states = self.needed[t]
            if len(states):
                steps = torch.full_like(states, t)
                before, scale = self.before(found, steps, states, weights, relaxed)
                rows = self.place[t, states]
                values[rows], scales[rows] = self.transition.backward(before), scale
        return found

    def before(
        self, messages: Messages, steps: Tensor, states: Tensor, weights: Tensor, relaxed: bool = False
    ) -> tuple[Tensor, Tensor]:
        """b_t(s, z) of some pairs [n], divided by exp of its scale: [n, K], [n]."""
        pair, edge = self.edges_of(states)
        after = (steps[pair] + 1).clamp(max=self.span.most + 1)
        rows, ends = self.place[after, self.target[edge]], self.may_end(steps, states)
        top = torch.where(ends, 0.0, -torch.inf).double()
        top = top.scatter_reduce(0, pair, messages.scales[rows], "amax")
        top = top.masked_fill(top == -torch.inf, 0.0)
        factor = (messages.scales[rows] - top[pair]).exp().to(self.dtype)
        found = (ends * (-top).exp()).to(self.dtype).unsqueeze(-1) * self.end_weights()
        for some in torch.arange(len(pair), device=self.device).split(max(1, ENTRIES // found.shape[1])):
            terms = weights[self.label[edge[some]]] * messages.values[rows[some]] * factor[some].unsqueeze(-1)
            if relaxed:
                found.scatter_reduce_(0, pair[some].unsqueeze(-1).expand_as(terms), terms, "amax")
            else:
                found.index_add_(0, pair[some], terms)
        peak = found.amax(-1)
        return found / peak.masked_fill(peak == 0, 1.0).unsqueeze(-1), top + peak.double().log()

    def edges_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The edges of some states [n]: the index of the state, and the edge."""
        counts = self.counts[states]
        pair = torch.arange(len(states), device=self.device).repeat_interleave(counts)
        within = torch.arange(len(pair), device=self.device) - (counts.cumsum(0) - counts)[pair]
        return pair, self.begins[states][pair] + within

    def begin(self, batch: int = 1) -> Position:
        """Before the first token."""
        nothing = torch.zeros(batch, dtype=torch.int64, device=self.device)
        return Position(self.prior.expand(batch, -1), nothing, nothing)

    def read(self, position: Position, tokens: Tensor, context: bool = False) -> tuple[Position, Tensor]:
        """The position after one more token [B], and log p(token | tokens so far) [B]; the automaton does not read a
        token of the context."""
        joint = position.ahead * self.likelihoods.rows(tokens)
        total = joint.sum(-1)
        ahead = self.transition.forward(normalised(joint))
        if context:
            return position._replace(ahead=ahead), total.double().log()
        states = self.after[position.states, self.emission.classes[tokens]]
        return Position(ahead, position.steps + 1, states), total.double().log()

    def log_prob(self, position: Position) -> Tensor:
        """log p(constraint | tokens so far): [B]."""
        before, scale = self.before(self.messages, position.steps, position.states, self.sums)
        return (log_dot(position.ahead, before) + scale).clamp(max=0.0)

    def joint(self, position: Position, messages: Messages | None = None) -> Tensor:
        """log p(next token, constraint | tokens so far): [B, V]."""
        return self.predict(position, messages or self.messages)[0]

    def predict(self, position: Position, messages: Messages, alone: bool = False) -> tuple[Tensor, Tensor]:
        """log p(next token, constraint | tokens so far) and, with `alone`, log p(next token | tokens so far): [B, V].

        A token is multiplied only with the message of the state of the automaton that it leads to."""
        ahead, steps, states = position
        rows = self.place[(steps + 1).clamp(max=self.span.most + 1).unsqueeze(-1), self.after[states]]  # [B, C]
        ends, scales = self.may_end(steps, states), messages.scales[rows]
        top = torch.maximum(scales.amax(-1), torch.where(ends, 0.0, -torch.inf).double())
        top = top.masked_fill(top == -torch.inf, 0.0)
        factor = (scales - top.unsqueeze(-1)).exp().to(self.dtype)

        def weighted(c: int) -> Tensor:
            return ahead * messages.values[rows[:, c]] * factor[:, c, None]

        found, others = self.emission.predict(weighted, ahead if alone else None)
        found = found.log() + top.unsqueeze(-1)
        if self.span.end is not None:
            found[:, self.span.end] = log_dot(ahead, self.end_weights()).masked_fill(~ends, -torch.inf)
        return found, others.log()

    def next_tokens(self, position: Position) -> Tensor:
        """log p(next token | tokens so far, constraint): [B, V]."""
        joint = self.joint(position)
        total = joint.logsumexp(-1, keepdim=True)
        return joint - total.masked_fill(total == -torch.inf, 0.0)

    def next_alone(self, position: Position) -> Tensor:
        """log p(next token | tokens so far), whatever the constraint: [B, V]."""
        return self.emission.whole(position.ahead).log()

    def corrections(self, position: Position) -> Tensor:
        """log p(constraint | tokens so far, next token): [B, V]."""
        joint, alone = self.predict(position, self.messages, alone=True)
        return (joint - alone.masked_fill(alone == -torch.inf, 0.0)).clamp(max=0.0)

    def sample(self, position: Position, generator: torch.Generator | None = None) -> list[list[int]]:
        """Sample one continuation per sequence from p(tokens | tokens so far, constraint), without <eos>.

        States and tokens are sampled together, so a step needs one row of the transition and no sum over tokens."""
        found: list[list[int]] = [[] for _ in position.steps]
        active = torch.arange(len(found), device=self.device)
        uniform = draw_uniform((len(found), self.span.most + 1, 3), self.device, generator)
        for numbers in uniform.permute(1, 2, 0):  # drawn by sequence: the first n samples do not depend on their number
            states = invert(
                position.ahead * self.before(self.messages, *position[1:], self.sums)[0], numbers[0, active]
            )
            choice = invert(self.choices(position, states), numbers[1, active])
            going = choice < self.totals.shape[0]
            active, position, states, choice = active[going], position.some(going), states[going], choice[going]
            if not len(active):
                break
            words = self.likelihoods.columns(states) * (self.emission.classes == choice.unsqueeze(-1))
            tokens = invert(words, numbers[2, active])
            for row, token in zip(active.tolist(), tokens.tolist(), strict=True):
                found[row].append(token)
            after = self.after[position.states, choice]
            position = Position(self.transition.rows(states), position.steps + 1, after)
        return found

    def choices(self, position: Position, states: Tensor) -> Tensor:
        """Weights of the class of the next token, and last of the end, given the state that emits it: [B, C + 1]."""
        _, steps, here = position
        rows = self.place[(steps + 1).clamp(max=self.span.most + 1).unsqueeze(-1), self.after[here]]
        ends, scales = self.may_end(steps, here), self.messages.scales[rows]
        top = torch.maximum(scales.amax(-1), torch.where(ends, 0.0, -torch.inf).double())
        onward = self.totals[:, states].T.double() * self.messages.values[rows, states.unsqueeze(-1)].double()
        onward = onward * (scales - top.unsqueeze(-1)).exp()
        ending = self.end_weights()[states].double() * ends * (-top).exp()
        return torch.cat([onward, ending.unsqueeze(-1)], -1)

    def length_probs(self, position: Position) -> Tensor:
        """p(number of tokens | tokens so far, constraint) of one sequence: [most + 1]; by a forward pass."""
        found = torch.full((self.span.most + 1,), -torch.inf, dtype=torch.float64, device=self.device)
        ahead, states, scale = position.ahead, position.states, 0.0
        for t in range(int(position.steps[0]), self.span.most + 1):
            steps = torch.full_like(states, t)
            ends = self.may_end(steps, states)
            found[t] = log_dot(ahead, self.end_weights())[ends].logsumexp(0) + scale
            pair, label, index, states = self.onward(t, states)
            joint = ahead.new_zeros(len(states), ahead.shape[1])
            for some in torch.arange(len(pair), device=self.device).split(max(1, ENTRIES // ahead.shape[1])):
                joint.index_add_(0, index[some], ahead[pair[some]] * self.sums[label[some]])
            total = joint.sum()
            if total == 0:
                break
            ahead, scale = self.transition.forward(joint / total), scale + float(total.double().log())
        return (found - found.logsumexp(0)).exp()

    def onward(self, step: int, states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The edges of states [n] after `step` tokens into states that can accept: the index of the state, the label,
        the index of the next state, and the next states."""
        pair, edge = self.edges_of(states)
        keep = self.place[step + 1, self.target[edge]] < len(self.messages.values) - 1
        pair, edge = pair[keep], edge[keep]
        after, index = self.target[edge].unique(return_inverse=True)
        return pair, self.label[edge], index, after

    def beyond(self) -> float:
        """p(more than `most` tokens), whatever the constraint: the mass that the limit leaves out."""
        if self.ends is None:
            return 0.0
        ahead = self.prior[0]
        for _ in range(self.span.most):
            ahead = self.transition.forward(ahead * (1 - self.ends))
        return float((ahead * (1 - self.ends)).double().sum())


def log_dot(probs: Tensor, weights: Tensor) -> Tensor:
    """log sum_z p(z) w(z), in float64: [..., K] -> [...]."""
    return (probs.double() * weights.double()).sum(-1).log()
