"""The trellis of a sentence under an HMM, restricted to its most probable states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from trellis.corpus import Vocabulary
from trellis.models.text import Text
from trellis.report.trellis import Trellis

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM

MOST_STATES, WORTH = 14, 0.05  # maximum number of states; minimum peak posterior of a state
WORDS = 3  # words in a state's label


@torch.no_grad()
def sentence_trellis(model: HMM, sentence: Text) -> Trellis:
    """Posteriors, pairwise posteriors and the Viterbi path of a sentence, over its most probable states."""
    tokens = model.encode_line(sentence, eos=True)
    _, transition, emission = model.parts()
    smoothed, filtered = (found.probs[0].double() for found in (model.smooth(tokens), model.filter(tokens)))
    peak = smoothed.max(0).values
    chosen = peak.topk(min(MOST_STATES, model.num_states)).indices
    chosen = chosen[peak[chosen] >= WORTH]
    time = torch.arange(len(smoothed), dtype=torch.float64, device=smoothed.device)
    centre = (time @ smoothed[:, chosen]) / smoothed[:, chosen].sum(0)
    chosen = chosen[centre.argsort()]
    predicted = transition.forward(filtered[:-1].to(model.parts().start.dtype)).double()
    rows = transition.rows(chosen).double()[:, chosen]  # p(z' | z) among the chosen states
    ratio = (smoothed[1:] / predicted.clamp(min=torch.finfo(torch.float64).tiny))[:, chosen]
    steps = filtered[:-1, chosen].unsqueeze(-1) * rows * ratio.unsqueeze(1)
    place = {int(z): i for i, z in enumerate(chosen)}
    path = [place.get(int(z), -1) for z in model.best_path(tokens)[0][0]]
    names = state_words(model.vocab, emission.columns(chosen).cpu().numpy())
    words = model.vocab.decode(tokens[0].tolist())
    return Trellis(words, names, smoothed[:, chosen].cpu().numpy(), steps.cpu().numpy(), path)


def state_words(vocab: Vocabulary, log_probs: np.ndarray) -> list[str]:
    """The most probable words of states, given log p(x | z) [V, n]."""
    best = np.argsort(-log_probs, 0, kind="stable")[:WORDS].T
    return [", ".join(vocab.decode(row.tolist())) for row in best]
