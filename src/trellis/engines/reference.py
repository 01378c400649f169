"""The reference engine: recursions over time in plain torch, for any operator and device, differentiable throughout.

Arithmetic is scaled: with the prediction p_t = a_{t-1} A and the potentials o_t of step t,
    a_t = p_t o_t / c_t,    c_t = sum_z p_t(z) o_t(z) = p(x_t | x_<t).
The gradient of L = sum_t g_t log c_t, with weights g_t, is computed backwards; with the message m_t = dL/da_t,
    b_t = g_t + m_t - <m_t, a_t>,    w_t = o_t b_t / c_t,    m_{t-1} = A w_t,
and then dL/dlog o_t = a_t b_t (the posterior when g = 1), dL/dA = sum_t a_{t-1} w_t', dL/dprior = w_0.

At each step, the recursions run over the live states (`ids`). If the observation of a step is missing in any sequence
of the batch, they run over all states.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.transitions import Countable, TimeVarying, Transition
from trellis.transitions.base import invert
from trellis.transitions.dense import DenseStep
from trellis.types import Belief, Potentials

AnyTransition = Transition | TimeVarying


def step_operator(transition: AnyTransition, step: int) -> Any:
    """The operator between steps `step` and `step + 1`."""
    return transition.at(step) if isinstance(transition, TimeVarying) else transition


def written_step(transition: AnyTransition, step: int) -> Any:
    """Like `step_operator`, but a time-varying transition is given as a dense matrix."""
    return DenseStep(transition.at(step).dense()) if isinstance(transition, TimeVarying) else transition


def move(belief: Belief, transition: Transition, ids: Tensor | None) -> Tensor:
    """The distribution one step forward, at the states `ids` (all if None): [B, k] -> [B, k']."""
    if belief.ids is not None and ids is not None:
        return (belief.probs.unsqueeze(-2) @ transition.blocks(belief.ids, ids)).squeeze(-2)
    dense = to_dense(belief, transition.num_states)
    return transition.forward(dense) if ids is None else transition.forward_at(dense, ids)


def pull(message: Belief, transition: Transition, ids: Tensor | None) -> Tensor:
    """The message one step backward, at the states `ids` (all if None): [B, k'] -> [B, k]."""
    if message.ids is not None and ids is not None:
        return (transition.blocks(ids, message.ids) @ message.probs.unsqueeze(-1)).squeeze(-1)
    dense = to_dense(message, transition.num_states)
    return transition.backward(dense) if ids is None else transition.backward_at(dense, ids)


def to_dense(belief: Belief, num_states: int) -> Tensor:
    """The probabilities of a belief over all states, zero at those that are not live: [..., k] -> [..., K]."""
    if belief.ids is None:
        return belief.probs
    return belief.probs.new_zeros(*belief.probs.shape[:-1], num_states).scatter(-1, belief.ids, belief.probs)


def at_states(full: Tensor, ids: Tensor | None) -> Tensor:
    """Gather the entries of the given states: [B, K] -> [B, k]."""
    return full if ids is None else full.gather(-1, ids)


def first_step(prior: Belief, ids: Tensor | None, num_states: int) -> Tensor:
    """The prior at the live states of step 0: [B, k]. If the prior has live states, they must be the same."""
    if prior.ids is not None and ids is not None:
        return prior.probs
    return at_states(to_dense(prior, num_states), ids)


class Steps:
    """The live states of each step, and their potentials, scaled to a maximum of one."""

    def __init__(self, potentials: Potentials, num_states: int, lengths: Tensor) -> None:
        self.num_states, self.lengths = num_states, lengths
        self.full = potentials.ids is None
        self.wide = [True] * potentials.rows.shape[1] if self.full else potentials.gaps(lengths).any(0).tolist()
        self.potentials = potentials._replace(rows=potentials.rows.masked_fill(~potentials.inside(lengths), -1))
        learning = self.full and potentials.table.requires_grad and torch.is_grad_enabled()
        self.written = self.potentials.gather() if learning else None  # [B, T, K]: gathered once, not at each step

    def __len__(self) -> int:
        return len(self.wide)

    def inside(self, t: int) -> Tensor:
        """Mask of the sequences that have a step t: [B] bool."""
        return t < self.lengths

    def ids(self, t: int) -> Tensor | None:
        return None if self.wide[t] or self.potentials.ids is None else self.potentials.ids[:, t]

    def log_weights(self, t: int) -> Tensor:
        """log o_t at the live states: [B, k]."""
        if self.written is not None:
            return self.written[:, t]
        rows, ids = self.potentials.rows[:, t : t + 1], self.potentials.ids
        ids = None if ids is None else ids[:, t : t + 1]
        here = self.potentials._replace(rows=rows, ids=ids, all_observed=False)  # padding has no row
        return (here.widen(self.num_states) if self.wide[t] else here).gather()[:, 0]

    def weights(self, t: int) -> tuple[Tensor, Tensor]:
        """exp(log o_t - scale) [B, k] and the scale [B], so that the largest weight is 1."""
        log_weights = self.log_weights(t)
        scale = log_weights.detach().amax(-1)
        scale = scale.masked_fill(scale == -torch.inf, 0.0)
        return (log_weights - scale.unsqueeze(-1)).exp(), scale

    def stack(self, values: list[Tensor]) -> Tensor:
        """Stack the values of all steps: [B, T, k], or [B, T, K] if a gap makes all states live at some step."""
        if not self.full and any(self.wide):
            beliefs = [Belief(v, self.ids(t)) for t, v in enumerate(values)]
            values = [to_dense(b, self.num_states) for b in beliefs]
        return torch.stack(values, 1)


def run_forward(prior: Belief, transition: AnyTransition, steps: Steps) -> tuple[list[Tensor], list[Tensor]]:
    """For each step, log c_t = log p(x_t | x_<t) [B] and a_t = p(z_t | x_<=t) [B, k].

    If the scaled c_t is below the smallest normal number, it counts as zero, because its reciprocal might overflow."""
    log_norms: list[Tensor] = []
    filtered: list[Tensor] = []
    for t in range(len(steps)):
        ids, inside = steps.ids(t), steps.inside(t)
        if t == 0:
            predicted = first_step(prior, ids, transition.num_states)
        else:
            predicted = move(Belief(filtered[-1], steps.ids(t - 1)), step_operator(transition, t - 1), ids)
        weights, scale = steps.weights(t)
        joint = predicted * weights
        norm = joint.sum(-1)
        possible = norm >= torch.finfo(norm.dtype).tiny
        safe = norm.masked_fill(~(possible & inside), 1.0)
        log_norm = (safe.log() + scale).masked_fill(~possible, -torch.inf)
        log_norms.append(log_norm.masked_fill(~inside, 0.0))
        filtered.append((joint / safe.unsqueeze(-1)).masked_fill(~possible.unsqueeze(-1), 0.0))
    return log_norms, filtered


def last_step(values: Tensor, lengths: Tensor) -> Tensor:
    """The values at each sequence's last step, or at step 0 if it has no steps: [B, T, k] -> [B, k]."""
    return values[torch.arange(len(values), device=values.device), (lengths - 1).clamp(min=0)]


def or_prior(last: Tensor, prior: Tensor, lengths: Tensor) -> Tensor:
    """The last state distribution [B, k] of each sequence, or the prior if the sequence has no steps."""
    return torch.where((lengths == 0).unsqueeze(-1), prior, last)


def last_belief(stacked: Tensor, steps: Steps) -> Belief:
    """The state distribution and the live states at each sequence's last step, given p(z_t | x_<=t) [B, T, k]. If a
    sequence has no steps, its distribution is the prior."""
    probs, ids = last_step(stacked, steps.lengths), steps.potentials.ids
    return Belief(probs, None if ids is None or any(steps.wide) else last_step(ids, steps.lengths))


def score(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution."""
    steps = Steps(potentials, transition.num_states, lengths)
    log_norms, filtered = run_forward(prior, transition, steps)
    return torch.stack(log_norms, 1), last_belief(steps.stack(filtered), steps)


def filter(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, k] (zero in the padding) and the last state distribution."""
    steps = Steps(potentials, transition.num_states, lengths)
    log_norms, filtered = run_forward(prior, transition, steps)
    stacked = steps.stack(filtered)
    inside = potentials.inside(lengths).unsqueeze(-1)
    return torch.stack(log_norms, 1), stacked * inside, last_belief(stacked, steps)


def adjoint(
    transition: AnyTransition, steps: Steps, log_norms: list[Tensor], filtered: list[Tensor], weights: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The backward recursion described above: b_t and w_t [B, k] for each step, given g [B, T] (`weights`)."""
    futures: list[Tensor] = []
    pulls: list[Tensor] = []
    message = torch.zeros_like(filtered[-1])
    for t in reversed(range(len(steps))):
        inside = steps.inside(t).unsqueeze(-1)
        future = message + (weights[:, t] - (message * filtered[t]).sum(-1)).unsqueeze(-1)
        potential, scale = steps.weights(t)
        gain = (scale - log_norms[t]).masked_fill(log_norms[t] == -torch.inf, -torch.inf).exp()
        futures.append(future * inside)
        pulls.append((potential * future * gain.unsqueeze(-1)) * inside)
        if t > 0:
            message = pull(Belief(pulls[-1], steps.ids(t)), step_operator(transition, t - 1), steps.ids(t - 1))
    return futures[::-1], pulls[::-1]


def possible(log_norms: Tensor) -> Tensor:
    """1 at every step of a sequence with positive probability, 0 at every step of the other sequences: [B, T]."""
    return (log_norms.sum(1, keepdim=True) > -torch.inf).to(log_norms.dtype).expand_as(log_norms)


def smooth(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, k]."""
    steps = Steps(potentials, transition.num_states, lengths)
    log_norms, filtered = run_forward(prior, transition, steps)
    stacked = torch.stack(log_norms, 1)
    futures, _ = adjoint(transition, steps, log_norms, filtered, possible(stacked))
    return stacked, steps.stack([a * b for a, b in zip(filtered, futures, strict=True)])


class Expected(NamedTuple):
    """The result of `expect`."""

    log_norms: Tensor  # [B, T]: log p(x_t | x_<t)
    belief: Belief  # of the last step
    entry: Tensor  # [B, k]: d log p(x) / d prior
    starts: Tensor  # [B, k]: p(z_0 | x)
    moves: Tensor  # expected transitions, as the statistics of this type of transition
    visits: Tensor  # [N, k]: how often each state is expected to emit each row of the table


def expect(prior: Belief, transition: Countable | TimeVarying, potentials: Potentials, lengths: Tensor) -> Expected:
    """The expected statistics of EM."""
    steps = Steps(potentials, transition.num_states, lengths)
    if potentials.ids is not None:
        result = expect(prior, transition, potentials.widen(transition.num_states), lengths)
        posterior = result.visits.view(*potentials.rows.shape, -1).gather(-1, potentials.ids)
        return result._replace(visits=add_rows(steps.potentials, posterior))
    log_norms, filtered = run_forward(prior, transition, steps)
    stacked = torch.stack(log_norms, 1)
    futures, pulls = adjoint(transition, steps, log_norms, filtered, possible(stacked))
    visits = add_rows(steps.potentials, torch.stack([a * b for a, b in zip(filtered, futures, strict=True)], 1))
    moves = transition.expected(torch.stack(filtered, 1)[:, :-1], torch.stack(pulls, 1)[:, 1:])
    starts = pulls[0] * first_step(prior, None, transition.num_states)
    return Expected(stacked, last_belief(steps.stack(filtered), steps), pulls[0], starts, moves, visits)


def add_rows(potentials: Potentials, posterior: Tensor) -> Tensor:
    """Sum posteriors [B, T, k] over the steps that observe the same row of the table: -> [N, k]."""
    seen = posterior * (potentials.rows >= 0).unsqueeze(-1)
    rows, total = potentials.rows.clamp(min=0).flatten(), torch.zeros_like(potentials.table)
    if total.is_cuda:  # added in a fixed order, unlike by index_add
        return total.index_put((rows,), seen.flatten(0, 1), accumulate=True)
    return total.index_add(0, rows, seen.flatten(0, 1))


def viterbi(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (as indices of live states, -1 in the padding) and its log-probability [B]."""
    steps = Steps(potentials, transition.num_states, lengths)
    scores = (prior.probs.log() + steps.log_weights(0)).masked_fill(lengths.unsqueeze(-1) == 0, 0.0)
    pointers: list[Tensor] = []
    for t in range(1, len(steps)):
        inside = steps.inside(t).unsqueeze(-1)
        best, argument = written_step(transition, t - 1).max_product(scores)
        pointers.append(torch.where(inside, argument, torch.arange(argument.shape[-1], device=argument.device)))
        scores = torch.where(inside, best + steps.log_weights(t), scores)
    score, state = scores.max(-1)
    path = [state]
    for pointer in reversed(pointers):
        path.append(pointer.gather(-1, path[-1].unsqueeze(-1)).squeeze(-1))
    outside = torch.arange(len(steps), device=lengths.device) >= lengths[:, None]
    return torch.stack(path[::-1], 1).masked_fill(outside, -1), score


def sample(transition: AnyTransition, filtered: Tensor, lengths: Tensor, uniform: Tensor) -> Tensor:
    """Sample paths [B, T] from p(z | x), given p(z_t | x_<=t) [B, T, K] and uniform numbers; -1 in the padding."""
    batch, steps, _ = filtered.shape
    path = torch.full((batch, steps), -1, dtype=torch.int64, device=filtered.device)
    for t in reversed(range(steps)):
        draw = invert(filtered[:, t], uniform[:, t])
        if t + 1 < steps:
            after = path[:, t + 1].clamp(min=0)
            continued = written_step(transition, t).sample_prev(after, filtered[:, t], uniform[:, t])
            draw = torch.where(t + 1 < lengths, continued, draw)
        path[:, t] = torch.where(t < lengths, draw, -1)
    return path
