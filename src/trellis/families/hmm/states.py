"""State diagnostics of an HMM: the words of states, the number of states that a text uses, occupancy and entropies.

No array of states x tokens or states x states is ever formed: posteriors are computed for one window at a time, over
the live states, and the transition matrix a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.inference import discrete
from trellis.models.base import StateSummary
from trellis.transitions import Transition
from trellis.types import Batch

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM

CHUNK = 1 << 26  # entries of the transition matrix in memory at a time


@torch.no_grad()
def summarise_states(model: HMM, n: int = 10, words: int = 8, followers: int = 3) -> list[StateSummary]:
    """The n most informative states, in descending order."""
    _, transition, emission = model.parts()
    share = model.occupancy()
    log_average = emission.predict(share).unsqueeze(-1)
    surprise = torch.cat([divergence(some, log_average) for some in emission.by_state()])
    telling = torch.where(share > 0, share * surprise, 0.0)
    chosen = telling.topk(min(n, model.num_states)).indices
    log_words = emission.columns(chosen).T
    one_hot = torch.nn.functional.one_hot(chosen, model.num_states).to(share.dtype)
    follow = transition.forward(one_hot).topk(min(followers, model.num_states))
    return [
        StateSummary(
            int(z),
            float(share[z]),
            float(telling[z]),
            model.rank(log_words[row], words),
            list(zip(follow.indices[row].tolist(), follow.values[row].tolist(), strict=True)),
        )
        for row, z in enumerate(chosen)
    ]


def divergence(log_words: Tensor, log_average: Tensor) -> Tensor:
    """KL(p(word | state) || p(word)): [V, n], [V, 1] -> [n]."""
    return torch.where(log_words > -torch.inf, log_words.exp() * (log_words - log_average), 0.0).sum(0)


class Merged(NamedTuple):
    """States with the same most probable word, and their joint probability."""

    word: int
    prob: float
    states: int  # the number of states of probability above zero
    main: int  # the most probable of them


def merged_by_word(probs: Tensor, best: Tensor, words: int, n: int) -> list[Merged]:
    """A distribution over states [K], summed over states with the same most probable word [K]: the n most probable."""
    totals = torch.zeros(words, device=probs.device, dtype=probs.dtype).index_add_(0, best, probs)
    top, found = totals.topk(min(n, words)), []
    for word, prob in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        alike = torch.where(best == word, probs, 0.0)
        if prob > 0:
            found.append(Merged(word, prob, int((alike > 0).sum()), int(alike.argmax())))
    return found


class StateMeasures(NamedTuple):
    """How a model uses its states on a text; entropies in nats, over the states that emit words."""

    occupancy: float  # share of the states that are most probable for some token
    effective_states: float  # exp(entropy) of the mean posterior
    emission_entropy: float  # mean over states
    transition_entropy: float
    visited_emission_entropy: float  # mean over tokens: states weighted by visits
    visited_transition_entropy: float


@torch.no_grad()
def measure_states(model: HMM, batches: Iterable[Batch]) -> StateMeasures:
    """Occupancy and entropies on a text; consecutive batches continue one another as in `evaluate`."""
    _, transition, emission = model.parts()
    visits, best = visit_states(model, batches)
    share = visits / visits.sum()
    emit, mass = emission_entropies(emission)
    has_words = (mass > 0).double()
    uniform = has_words / has_words.sum()
    move = transition_entropies(transition, model.device)
    weighted = (float(weights @ entropies) for weights in (uniform, share) for entropies in (emit, move))
    effective = torch.special.entr(share).sum().exp()
    return StateMeasures(float(best.double().mean()), float(effective), *weighted)


@torch.no_grad()
def visit_states(model: HMM, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Expected visits of each state [K], and whether it is the most probable one for some token [K].

    Posteriors condition on the whole past, and on the future up to the end of the batch."""
    start, transition, emission = model.parts()
    visits = torch.zeros(model.num_states, dtype=torch.float64, device=model.device)
    best = torch.zeros_like(visits, dtype=torch.bool)
    state = None
    for batch in batches:
        batch = batch.to(model.device)
        state = model.continued(batch, state)
        potentials = emission.potentials(batch.tokens)
        prior = state.prior(start, transition, potentials.first_ids())
        probs = discrete.smooth(prior, transition, potentials, batch.lengths).probs
        _, state = model.score(batch.tokens, state, batch.lengths)
        ids = potentials.ids
        if ids is None:
            visits += probs.sum((0, 1), dtype=torch.float64)
        else:
            visits.scatter_add_(0, ids.flatten(), probs.flatten().double())
        top, path = probs.max(-1)  # zero in the padding
        best[discrete.name_states(path, ids)[top > 0]] = True
    if not bool(visits.sum() > 0):
        raise TrellisError("Nothing to measure: the text is empty or has probability zero under the model.")
    return visits, best


def transition_entropies(transition: Transition, device: torch.device) -> Tensor:
    """The entropy of p(z' | z) for every z, a few rows at a time: [K]."""
    states = torch.arange(transition.num_states, device=device)
    chunks = states.split(max(1, CHUNK // transition.num_states))
    return torch.cat([torch.special.entr(transition.rows(some)).sum(-1, dtype=torch.float64) for some in chunks])


def emission_entropies(emission: Categorical) -> tuple[Tensor, Tensor]:
    """The entropy of p(x | z) for every z, and its sum, which is zero for a state without words: [K], [K]."""
    probs = emission.table.double().exp()
    both = torch.stack([torch.special.entr(probs), probs])  # [2, V, k]
    if emission.support is None:
        entropies, mass = both.sum(1)
    else:
        states = emission.support.flatten().expand(2, -1)
        entropies, mass = both.new_zeros(2, emission.num_states).scatter_add(1, states, both.flatten(1))
    return entropies, mass


@torch.no_grad()
def estimate_long_run(model: HMM, batches: Iterable[Batch]) -> tuple[Tensor, Tensor | None]:
    """State occupancy [K] and, if the text contains <eos>, the state distribution after it, estimated from a text.

    For models too large to iterate their transitions to convergence."""
    start, transition, emission = model.parts()
    visits, endings = torch.zeros_like(start, dtype=torch.float64), []
    for batch in batches:
        batch = batch.to(model.device)
        potentials = emission.potentials(batch.tokens)
        prior = model.start(len(batch.tokens)).prior(start, transition, potentials.first_ids())
        probs = discrete.filter(prior, transition, potentials, batch.lengths).probs
        ids = potentials.ids
        places = ids if ids is not None else torch.arange(model.num_states, device=probs.device).expand_as(probs)
        visits.scatter_add_(0, places.flatten(), probs.flatten().double())
        endings.append(probs[(batch.tokens == model.vocab.eos) & potentials.inside(batch.lengths)])
    ending = torch.cat(endings).sum(0)
    return (visits / visits.sum()).to(start.dtype), ending / ending.sum() if float(ending.sum()) > 0 else None
