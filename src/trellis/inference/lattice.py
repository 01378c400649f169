"""The lattice of one sequence: posteriors of its most probable states and of the transitions between them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines import with_gaps
from trellis.engines.reference import to_dense
from trellis.engines.with_gaps import Solved as Solved
from trellis.inference import discrete
from trellis.transitions import Transition
from trellis.types import Belief, Potentials


class Lattice(NamedTuple):
    """The n most relevant states of a sequence of T steps, in the order in which they occur."""

    states: Tensor  # [n]
    posterior: Tensor  # [T, n]: p(z_t | x)
    pairs: Tensor  # [T - 1, n, n]: p(z_t, z_t+1 | x)
    path: list[int]  # [T]: the Viterbi path as indices of `states`
    log_probs: Tensor  # [T]: log p(x_t | x_<t); zero for a missing observation


@torch.no_grad()
def solve(prior: Belief, transition: Transition, potentials: Potentials, report: with_gaps.Report = bool) -> Solved:
    """Filter, smooth and find the Viterbi path of a batch of one sequence. Inference runs over live states; at a gap,
    over all states. `report` is called with the share of the work between adjacent gaps that is done so far."""
    if potentials.ids is not None and bool((potentials.rows < 0).any()):
        found = with_gaps.solve(prior, transition, potentials, report)
        if bool(found.log_norms.isfinite().all()):  # otherwise it may have underflowed
            return found
    filtered = discrete.filter(prior, transition, potentials)
    smoothed = discrete.smooth(prior, transition, potentials)
    path, score = discrete.viterbi(prior, transition, potentials)
    all_live = potentials.ids is None or filtered.probs.shape[-1] == transition.num_states
    live = None if all_live or potentials.ids is None else potentials.ids[0]  # [T, k]
    both = filtered.probs, smoothed.probs
    ahead, posterior = (to_dense(Belief(probs[0], live), transition.num_states) for probs in both)
    return Solved(filtered.log_norms[0], ahead, posterior, path[0], score[0])


@torch.no_grad()
def lattice(found: Solved, transition: Transition, most: int, worth: float) -> Lattice:
    """The lattice of a sequence over the states of its Viterbi path and other states with a peak posterior of at least
    `worth`, up to `most` states in all.

    p(z_t, z_t+1 | x) = f_t(z_t) A(z_t, z_t+1) p(z_t+1 | x) / q_t+1(z_t+1). Here f_t is the filtered distribution of
    step t, and q_t+1 = f_t A is the prediction of the next step."""
    chosen = most_relevant(found, most, worth)
    posterior, ahead = found.posterior[:, chosen].double(), found.filtered[:-1]
    visited = (ahead != 0).any(0).nonzero().flatten()
    predicted = (ahead[:, visited] @ transition.blocks(visited, chosen)).double()
    moves = transition.blocks(chosen, chosen).double()  # p(z' | z) among the chosen states
    ratio = posterior[1:] / predicted.clamp(min=torch.finfo(torch.float64).tiny)
    pairs = ahead[:, chosen].double().unsqueeze(-1) * moves * ratio.unsqueeze(1)
    place = {z: i for i, z in enumerate(chosen.tolist())}
    path = [place[z] for z in found.path.tolist()]
    return Lattice(chosen, posterior, pairs, path, found.log_norms.double())


def most_relevant(found: Solved, most: int, worth: float) -> Tensor:
    """All states of the Viterbi path, and up to `most` states in all with the highest peaks of the posterior, in the
    order of their mean position: [n]."""
    peak = found.posterior.max(0).values.index_fill(0, found.path, torch.inf)
    chosen = peak.topk(min(max(most, len(found.path.unique())), len(peak))).indices
    chosen = chosen[peak[chosen] >= worth]
    time = torch.arange(len(found.path), dtype=torch.float64, device=peak.device)
    on_path = found.path.unsqueeze(-1) == chosen  # a state of the path may have a posterior that has underflowed
    mass = found.posterior[:, chosen].double() + torch.finfo(torch.float64).tiny * on_path
    return chosen[((time @ mass) / mass.sum(0)).argsort()]
