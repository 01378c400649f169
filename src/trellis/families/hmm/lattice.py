"""The trellis of a sentence under an HMM, restricted to its most probable states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import Vocabulary
from trellis.engines.reference import move, to_dense
from trellis.inference import discrete
from trellis.inference.queries import Chain
from trellis.models.text import Text
from trellis.report.trellis import Trellis
from trellis.types import Belief

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM

MOST_STATES, WORTH = 14, 0.05  # maximum number of states; minimum peak posterior of a state
WORDS = 3  # words in a state's label


class Lattice(NamedTuple):
    """The n most probable states of a sentence of T tokens, in the order in which they occur."""

    states: Tensor  # [n]
    posterior: Tensor  # [T, n]: p(z_t | x)
    pairs: Tensor  # [T - 1, n, n]: p(z_t, z_t+1 | x)
    path: list[int]  # [T]: the Viterbi path as indices of `states`; -1 for a state that is not among them
    log_probs: Tensor  # [T]: log p(x_t | x_<t); zero for a gap


@torch.no_grad()
def sentence_trellis(model: HMM, sentence: Text) -> Trellis:
    """Posteriors, pairwise posteriors and the Viterbi path of a sentence, over its most probable states."""
    tokens = model.encode_line(sentence, eos=True)
    found = sentence_lattice(model.chain(), tokens, MOST_STATES, WORTH)
    names = state_words(model.vocab, model.parts().emission.columns(found.states).cpu().numpy())
    words = model.vocab.decode(tokens[0].tolist())
    return Trellis(words, names, found.posterior.cpu().numpy(), found.pairs.cpu().numpy(), found.path)


@torch.no_grad()
def sentence_lattice(chain: Chain, tokens: Tensor, most: int, worth: float) -> Lattice:
    """The lattice of one sentence [1, T]; -1 is a gap. It has at most `most` states, all with a peak posterior of at
    least `worth`. Without gaps, inference runs over live states."""
    prior, transition, potentials = chain.prior, chain.transition, chain.emission.potentials(tokens)
    if bool((tokens < 0).any()):
        potentials = chain.potentials(tokens)
    filtered = discrete.filter(prior, transition, potentials)
    smoothed = discrete.smooth(prior, transition, potentials)
    path = discrete.viterbi(prior, transition, potentials)[0][0].tolist()
    live = None if potentials.ids is None or potentials.has_gaps(tokens.new_tensor(tokens.shape[1:])) else potentials.ids[0]
    dense = to_dense(Belief(smoothed.probs[0], live), transition.num_states)
    chosen = most_probable(dense, most, worth)
    posterior = dense[:, chosen].double()
    before = Belief(filtered.probs[0, :-1], None if live is None else live[:-1])
    predicted = move(before, transition, chosen.expand(len(dense) - 1, -1)).double()
    ahead = to_dense(before, transition.num_states)[:, chosen].double()
    moves = transition.blocks(chosen, chosen).double()  # p(z' | z) among the chosen states
    ratio = posterior[1:] / predicted.clamp(min=torch.finfo(torch.float64).tiny)
    pairs = ahead.unsqueeze(-1) * moves * ratio.unsqueeze(1)
    place = {z: i for i, z in enumerate(chosen.tolist())}
    return Lattice(chosen, posterior, pairs, [place.get(z, -1) for z in path], filtered.log_norms[0].double())


def most_probable(posterior: Tensor, most: int, worth: float) -> Tensor:
    """The states with the highest peaks of the posterior [T, K], in the order of their mean position: [n]."""
    peak = posterior.max(0).values
    chosen = peak.topk(min(most, len(peak))).indices
    chosen = chosen[(peak[chosen] >= worth) | (chosen == chosen[0])]
    time = torch.arange(len(posterior), dtype=torch.float64, device=posterior.device)
    mass = posterior[:, chosen].double()
    return chosen[((time @ mass) / mass.sum(0)).argsort()]


def state_words(vocab: Vocabulary, log_probs: np.ndarray) -> list[str]:
    """The most probable words of states, given log p(x | z) [V, n]."""
    best = np.argsort(-log_probs, 0, kind="stable")[:WORDS].T
    return [", ".join(vocab.decode(row.tolist())) for row in best]
