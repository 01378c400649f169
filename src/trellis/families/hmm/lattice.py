"""The trellis of a sentence under an HMM, restricted to its most relevant states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from trellis.corpus import Vocabulary
from trellis.inference.lattice import lattice, solve
from trellis.models.text import Text
from trellis.report.trellis import Trellis

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM

MOST_STATES, WORTH = 14, 0.05  # states, if the Viterbi path has no more; minimum peak posterior of the others
WORDS = 3  # words in a state's label


@torch.no_grad()
def sentence_trellis(model: HMM, sentence: Text) -> Trellis:
    """The posteriors of states and transitions and the Viterbi path of a sentence, over its most relevant states."""
    tokens = model.encode_line(sentence, eos=True)
    prior, transition, emission, _ = model.chain()
    found = lattice(solve(prior, transition, emission.potentials(tokens)), transition, MOST_STATES, WORTH)
    names = state_words(model.vocab, emission.columns(found.states).cpu().numpy())
    words = model.vocab.decode(tokens[0].tolist())
    return Trellis(words, names, found.posterior.cpu().numpy(), found.pairs.cpu().numpy(), found.path)


def state_words(vocab: Vocabulary, log_probs: np.ndarray) -> list[str]:
    """The most probable words of states, given log p(x | z) [V, n]."""
    best = np.argsort(-log_probs, 0, kind="stable")[:WORDS].T
    return [", ".join(vocab.decode(row.tolist())) for row in best]
