"""Exact inference in the product of a hidden Markov chain and an automaton: sequences that satisfy a constraint.

After t tokens, let s be the state of the automaton, and z the state of the chain that emits the next token. The
probability b_t(s, z) that the rest of the sequence satisfies the constraint follows from messages m:

    b_t(s, z) = [may end] end(z) + sum_c e_c(z) m_{t+1}(s', z),    m_t(s, z) = sum_z' A(z, z') b_t(s, z'),

where s' is the state of the automaton after s and a token of class c, and e_c(z) is the probability that z emits a
token of that class. A sentence may end after `least` to `most` tokens if the automaton accepts; for sentences, end(z) =
p(<eos> | z). A stream has exactly `most` tokens, and end(z) = 1 after the last. It follows that p(constraint | x_<=t) =
sum_z p(z | x_<=t) b_t(s, z).

The message of a pair (t, s) is computed only if the pair can be reached from the first state and can still lead to
acceptance. The messages m do not depend on a prompt. Each message is stored with a log-scale of its own, so that
improbable constraints do not underflow. Classes that lead from s to the same s' are one edge, and equal sets of classes
share their sums over tokens."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.constraints.automaton import Automaton
from trellis.emissions.classed import Classed, Likelihoods
from trellis.engines import replay
from trellis.engines.reference import to_dense
from trellis.errors import TrellisError
from trellis.inference.constrained_lattice import Edges, Lattice, Span, Stage, edges_in
from trellis.inference.queries import Chain
from trellis.kernels.draws import Table
from trellis.kernels.lse.tiled import slices
from trellis.kernels.optional import installed
from trellis.transitions import Dense, Transition

LARGEST = 1 << 30  # numbers in the stored messages
ENTRIES = 1 << 24  # temporary numbers in memory at a time
PATIENCE, GRAPHS = 8, 8  # calls with the same shapes before the first CUDA graph is made; largest number of graphs
LARGER = 16  # the factor by which the graphs of preparation may be larger than others


class Position(NamedTuple):
    """The positions of B sequences in the product of chain and automaton."""

    ahead: Tensor  # p(z | tokens so far) of the state that emits the next token: [B, K]
    steps: Tensor  # tokens so far: [B]
    states: Tensor  # of the automaton: [B]

    def some(self, rows: Tensor | slice) -> Position:
        return Position(*(part[rows] for part in self))


class Messages(NamedTuple):
    """One row m_t(s, .) for each pair (t, s) of the lattice, divided by exp of its scale. The last row, which stands
    for all other pairs, is zero."""

    values: Tensor  # [R + 1, K]
    scales: Tensor  # [R + 1] float64


class Product:
    """The product of a chain and an automaton. The chain has the prior of one sequence; the automaton may have several
    initial states."""

    @torch.no_grad()
    def __init__(
        self,
        chain: Chain,
        automaton: Automaton,
        span: Span,
        likelihoods: Likelihoods | None = None,
        starts: Sequence[int] = (0,),
    ) -> None:
        self.transition, self.span = chain.transition, span
        self.prior = to_dense(chain.prior, chain.transition.num_states)[:1]
        self.device, self.dtype = self.prior.device, self.prior.dtype
        self.moves = chain.transition.for_products(span.most)
        self.lattice = Lattice(automaton, span, self.device, starts)
        if self.lattice.size * self.transition.num_states > LARGEST:
            raise TrellisError(
                f"The constraint needs {self.lattice.size:,} messages of {self.transition.num_states:,} states, more "
                "than fit into memory; shorten the sentences or simplify the constraint."
            )
        self.likelihoods = Likelihoods.of(chain.emission) if likelihoods is None else likelihoods
        self.emission = Classed(self.likelihoods, self.lattice.classes, self.lattice.after.shape[1], self.device)
        self.totals = self.emission.totals()  # p(a token of the class | z): [C, K]
        self.sums = self.lattice.labels.to(self.dtype) @ self.totals  # p(a token of the label | z): [L, K]
        self.ends = torch.ones_like(self.prior[0])
        if span.end is not None:
            self.ends = self.likelihoods.rows(torch.full((1,), span.end, device=self.device))[0]
        self.side_by_side, self.calls, self.patience = self.device.type != "cpu", Counter[Hashable](), PATIENCE
        self.graphs: dict[Hashable, replay.Replay] = {}
        self.messages = self.compute(self.sums, relaxed=False)

    @property
    def num_symbols(self) -> int:
        return self.likelihoods.num_symbols

    def label_best(self) -> Tensor:
        """For each label, the probability of the most probable token of that label in state z: [L, K]."""
        best = self.emission.best()
        return torch.stack([best[mask].amax(0) for mask in self.lattice.labels]) if len(self.sums) else best[:0]

    @cached_property
    def relaxed(self) -> Messages:
        """Messages in which every state of the chain chooses its own tokens: upper bounds for the search."""
        return self.compute(self.label_best(), relaxed=True)

    def compute(self, weights: Tensor, relaxed: bool) -> Messages:
        """The messages of all pairs. With `relaxed`, maxima over tokens replace sums."""
        order, sizes, table = self.lattice.stages(every=relaxed)
        run = partial(messages_of, self.moves, (order, sizes), self.lattice.size, relaxed)
        problem = weights, self.ends, self.lattice.sure[:0] if relaxed else self.lattice.sure, table
        return prepared(run, problem, self.likelihoods.graphs) if self.moves is self.transition else run(*problem)

    def before(self, steps: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """b_t(s, z) of n pairs (t, s), divided by exp of its log-scale, and this log-scale: [n, K], [n]."""
        if self.is_narrow(steps):
            return self.before_side_by_side(steps, states)
        begins, source, edge = self.lattice.edges_of(states)
        target = self.lattice.rows(steps[source] + 1, self.lattice.target[edge])
        edges = Edges(self.lattice.may_end(steps, states), begins, source, target, self.lattice.label[edge])
        return joined(self.messages, edges, self.sums, self.ends)

    def before_side_by_side(self, steps: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """`before` for all edges at a time, without waiting for the device."""
        label, target = (part[states] for part in self.lattice.side_by_side)
        rows = self.lattice.rows(steps.unsqueeze(-1) + 1, target)
        ends, scales = self.lattice.may_end(steps, states), self.messages.scales[rows]
        top = torch.maximum(scales.amax(-1), torch.where(ends, 0.0, -torch.inf).double())
        top = top.masked_fill(top == -torch.inf, 0.0)
        factor = (scales - top.unsqueeze(-1)).exp().to(self.dtype).unsqueeze(-1)
        found = (self.sums[label] * self.messages.values[rows] * factor).sum(1)
        found += torch.where(ends, -top, -torch.inf).exp().to(self.dtype).unsqueeze(-1) * self.ends
        peak = found.amax(-1)
        return found / peak.masked_fill(peak == 0, 1.0).unsqueeze(-1), top + peak.double().log()

    def begin(self, batch: int = 1, start: int | None = None) -> Position:
        """The position before the first token. `start` is the initial state of the automaton, if it has several."""
        steps = torch.zeros(batch, dtype=torch.int64, device=self.device)
        states = torch.full_like(steps, self.lattice.starts[0] if start is None else start)
        return Position(self.prior.expand(batch, -1), steps, states)

    def read(self, position: Position, tokens: Tensor, context: bool = False) -> tuple[Position, Tensor]:
        """The position after one more token [B], and log p(token | tokens so far) [B]. With `context`, the automaton
        does not read the token."""
        return self.replayed(Product.extended, position, tokens, context)

    def extended(self, position: Position, tokens: Tensor, context: bool) -> tuple[Position, Tensor]:
        joint = position.ahead * self.likelihoods.rows(tokens)
        total = joint.sum(-1)
        ahead = self.moves.forward(joint / total.masked_fill(total == 0, 1.0).unsqueeze(-1))
        if context:
            return position._replace(ahead=ahead), total.double().log()
        states = self.lattice.after[position.states, self.emission.classes[tokens]]
        return Position(ahead, position.steps + 1, states), total.double().log()

    def log_prob(self, position: Position) -> Tensor:
        """log p(constraint | tokens so far): [B]."""
        before, scale = self.before(position.steps, position.states)
        return (log_dot(position.ahead, before) + scale).clamp(max=0.0)

    def joint(self, position: Position, messages: Messages | None = None) -> Tensor:
        """log p(next token, constraint | tokens so far): [B, V]."""
        return self.predict(position, messages or self.messages)[0]

    def predict(self, position: Position, messages: Messages, alone: bool = False) -> tuple[Tensor, Tensor]:
        """log p(next token, constraint | tokens so far) and, with `alone`, log p(next token | tokens so far): [B, V].

        The emissions of a token are multiplied only with one message: that of the automaton state to which the token
        leads."""
        ahead = position.ahead
        rows, factor, ends, top = self.reached(position, messages)

        def weighted(c: int) -> Tensor:
            return ahead * messages.values[rows[:, c]] * factor[:, c, None].to(self.dtype)

        found, others = self.emission.predict(weighted, ahead if alone else None)
        found = found.log() + top.unsqueeze(-1)
        if self.span.end is not None:
            found[:, self.span.end] = log_dot(ahead, self.ends).masked_fill(~ends, -torch.inf)
        return found, others.log()

    def reached(self, position: Position, messages: Messages) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each sequence and each class of next tokens: the row of the message of the pair (t, s) to which a token
        of the class leads, and exp(scale of this message - largest scale), [B, C] each. For each sequence: whether it
        may end here, and the largest scale, [B] each. If the sequence may end, the largest scale is at least 0."""
        _, steps, states = position
        rows = self.lattice.rows(steps.unsqueeze(-1) + 1, self.lattice.after[states])
        ends, scales = self.lattice.may_end(steps, states), messages.scales[rows]
        top = torch.maximum(scales.amax(-1), torch.where(ends, 0.0, -torch.inf).double())
        top = top.masked_fill(top == -torch.inf, 0.0)
        return rows, (scales - top.unsqueeze(-1)).exp(), ends, top

    def next_tokens(self, position: Position) -> Tensor:
        """log p(next token | tokens so far, constraint): [B, V]."""
        joint = self.joint(position)
        total = joint.logsumexp(-1, keepdim=True)
        return joint - total.masked_fill(total == -torch.inf, 0.0)

    def log_prob_of(self, position: Position, tokens: Tensor) -> Tensor:
        """log p(next token | tokens so far), irrespective of the constraint: [B] -> [B]."""
        return log_dot(position.ahead, self.likelihoods.rows(tokens))

    def corrections(self, position: Position) -> Tensor:
        """log p(constraint | tokens so far, next token): [B, V]."""
        if self.is_narrow(position.steps):
            return self.replayed(Product.corrected, position)
        open = self.open(position)
        found = torch.zeros(len(open), self.num_symbols, dtype=torch.float64, device=self.device)
        if bool(open.any()):
            found[open] = self.corrected(position.some(open))
        return found

    def corrected(self, position: Position) -> Tensor:
        """`corrections`, without waiting for the device."""
        joint, alone = self.predict(position, self.messages, alone=True)
        found = (joint - alone.masked_fill(alone == -torch.inf, 0.0)).clamp(max=0.0)
        return found.masked_fill(~self.open(position).unsqueeze(-1), 0.0)

    def open(self, position: Position) -> Tensor:
        """Whether the constraint is not certain to be satisfied: [B]."""
        return ~self.lattice.certain[position.states] | (position.steps >= self.span.most)

    def corrections_of(self, position: Position, tokens: Tensor) -> Tensor:
        """log p(constraint | tokens so far, next token) for some next tokens: [B, n] -> [B, n]."""
        rows, _, ends, _ = self.reached(position, self.messages)
        rows = rows.gather(1, self.emission.classes[tokens])  # [B, n]
        joint = position.ahead.unsqueeze(1) * self.likelihoods.rows(tokens.flatten()).unflatten(0, tokens.shape)
        alone, total = joint.sum(-1), (joint * self.messages.values[rows]).sum(-1)
        found = total.log().double() + self.messages.scales[rows] - alone.log().nan_to_num(neginf=0.0)
        if self.span.end is not None:
            found = torch.where(tokens == self.span.end, torch.where(ends, 0.0, -torch.inf).unsqueeze(-1), found)
        return found.clamp(max=0.0)

    def largest_corrections(self, position: Position) -> Tensor:
        """An upper bound on log p(constraint | tokens so far, next token): [B, V].

        The probability is a mean over the entries of one message, so it is at most the largest of these entries. The
        message is that of the automaton state to which the token leads."""
        rows, _, ends, _ = self.reached(position, self.messages)
        bounds = self.bounds[rows]
        if self.span.end is not None:  # the last class
            bounds[:, -1] = torch.where(ends, 0.0, -torch.inf).double()
        return bounds[:, self.emission.classes]

    @cached_property
    def bounds(self) -> Tensor:
        """The log of the largest entry of each message: [R + 1]."""
        return self.messages.values.amax(-1).double().log() + self.messages.scales

    @cached_property
    def table(self) -> Table:
        """Where tokens lead, for the kernels that draw them."""
        end = -1 if self.span.end is None else self.span.end
        lattice = self.lattice
        return Table(
            lattice.place, lattice.after, lattice.accepting, self.emission.classes, *self.messages, self.span.ends, end
        )

    def choices(self, position: Position, states: Tensor) -> Tensor:
        """Weights of the classes of the next token and, in the last column, of the end: [B, C + 1]. They are
        conditional on the state that emits the token."""
        rows, factor, ends, top = self.reached(position, self.messages)
        onward = self.totals[:, states].T * self.messages.values[rows, states.unsqueeze(-1)] * factor
        ending = self.ends[states] * torch.where(ends, -top, -torch.inf).exp()
        return torch.cat([onward, ending.unsqueeze(-1)], -1)

    def replayed(self, function: Callable[..., Any], *problem: Any) -> Any:
        """function(self, *problem), which must not wait for the device. On a GPU, it is computed by a CUDA graph if
        arguments of these shapes occur often."""
        if not (replay.on_gpu(self.prior) and isinstance(self.moves, Dense) and self.is_narrow(problem[0].steps)):
            return function(self, *problem)
        key = function, replay.described(problem)
        self.calls[key] += 1
        if self.calls[key] <= self.patience:
            return function(self, *problem)
        try:
            return self.graph(key, function)(problem)
        except torch.cuda.OutOfMemoryError:  # of the graph, which has memory of its own
            self.forget_graphs()
        return function(self, *problem)

    def graph(self, key: Hashable, function: Callable[..., Any]) -> replay.Replay:
        with replay.LOCK:
            if key not in self.graphs and len(self.graphs) >= GRAPHS:
                self.forget_graphs()
            alone = partial(function, weakref.proxy(self))  # a graph does not keep the product alive
            return self.graphs.setdefault(key, replay.Replay(alone, 0, 1))

    def forget_graphs(self) -> None:
        """Free the graphs, and double the number of calls before the next captures. Shapes that keep replacing each
        other, such as those of shrinking batches, then soon run directly."""
        replay.forget(self.graphs)
        self.calls.clear()
        self.patience *= 2

    def is_narrow(self, steps: Tensor) -> bool:
        """Whether the messages of all edges of some positions are computed side by side: on a GPU, if they fit into
        memory."""
        if not self.side_by_side or not len(self.lattice.label):  # no edges: only the empty sentence is accepted
            return False
        return len(steps) * self.lattice.side_by_side[0].shape[1] * self.transition.num_states <= ENTRIES


def prepared(run: partial[Messages], problem: tuple[Any, ...], graphs: replay.Graphs) -> Messages:
    """The result of `messages_of`, which a CUDA graph computes from the second problem of the same shape on. The graphs
    read the transition matrix of the model in place."""
    moves, *shape = run.args
    if not isinstance(moves, Dense):
        return run(*problem)
    numbers = max(shape[1] * moves.num_states, LARGER * replay.BUDGET // GRAPHS)
    try:
        return replay.replayed((id(moves), *shape), run, problem, numbers, replay.Room(graphs, LARGER))
    except torch.cuda.OutOfMemoryError:
        replay.forget(graphs)
    return run(*problem)


def messages_of(
    moves: Transition,
    plan: tuple[tuple[Stage, ...], tuple[tuple[int, ...], ...]],
    size: int,
    relaxed: bool,
    weights: Tensor,
    ending: Tensor,
    sure: Tensor,
    table: Tensor,
) -> Messages:
    """The messages of all pairs, from the last step to the first; those of the `sure` rows are one. `ending` [K] is
    p(<eos> | z). The plan and the table are those of `Stages`. Never waits for the device."""
    order, sizes = plan
    values = ending.new_zeros(size + 1, len(ending)).index_fill_(0, sure, 1.0)
    scales = torch.full((size + 1,), -torch.inf, dtype=torch.float64, device=ending.device).index_fill_(0, sure, 0.0)
    edges = edges_in(table, sizes)
    for row, after, number in order:
        found, levels = joined(Messages(values[after:], scales[after:]), edges[number], weights, ending, relaxed)
        values[row : row + len(found)], scales[row : row + len(found)] = moves.backward(found), levels
    return Messages(values, scales)


def joined(
    messages: Messages, edges: Edges, weights: Tensor, ending: Tensor, relaxed: bool = False
) -> tuple[Tensor, Tensor]:
    """b_t(s, z) of pairs [n] from the messages to which their edges lead, and its log-scale: [n, K], [n]."""
    if kernels := edge_kernels(ending):
        return kernels.joined(*messages, edges, weights, ending, relaxed)
    (ends, _, source, target, label), scales = edges, messages.scales[edges.target]
    ends = ends.bool()
    top = torch.where(ends, 0.0, -torch.inf).double().scatter_reduce(0, source, scales, "amax")
    top = top.masked_fill(top == -torch.inf, 0.0)
    factor = (scales - top[source]).exp().to(ending.dtype).unsqueeze(-1)
    found = torch.where(ends, -top, -torch.inf).exp().to(ending.dtype).unsqueeze(-1) * ending
    for some in slices(len(source), ENTRIES // found.shape[1]):
        terms = messages.values[target[some]].mul_(weights[label[some]]).mul_(factor[some])
        if relaxed:
            found.scatter_reduce_(0, source[some].unsqueeze(-1).expand_as(terms), terms, "amax")
        else:
            found.index_add_(0, source[some], terms)
    peak = found.amax(-1)
    return found.div_(peak.masked_fill(peak == 0, 1.0).unsqueeze(-1)), top + peak.double().log()


def edge_kernels(probs: Tensor) -> Any:
    """The compiled code that joins edges on a GPU; None elsewhere."""
    return installed("kernels.edges.triton") if probs.is_cuda else None


def draw_kernels(probs: Tensor) -> Any:
    """The compiled code that draws tokens on a GPU; None elsewhere."""
    return installed("kernels.draws.triton") if probs.is_cuda else None


def log_dot(probs: Tensor, weights: Tensor) -> Tensor:
    """log sum_z p(z) w(z), in float64: [..., K] -> [...]."""
    return (probs.double() * weights.double()).sum(-1).log()
