"""Examples of states: the tokens of the validation or training text at which each state is most probable."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trellis.corpus import Split
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.explore.contexts import in_context, shortened
from trellis.explore.views import Answer, Turn
from trellis.inference import discrete
from trellis.tasks.lm import load_split
from trellis.types import Batch

if TYPE_CHECKING:
    from trellis.families.hmm.model import HMM

STATES = 3  # most probable states kept for each token
MOST_TOKENS, MOST_WORK = 20_000, 1 << 31  # of the text that is read: tokens, and tokens x live states squared
BLOCK = 1 << 25  # transitions between live states in one batch
AROUND = 8  # tokens shown on each side
SMALLEST = 0.1  # posterior of a state at an example


class Concordance:
    """The most probable states of every token at the beginning of a text."""

    def __init__(self, model: HMM) -> None:
        self.model = model
        self.split: Split | None = None
        self.states: np.ndarray = np.empty((0, STATES), np.int64)
        self.probs: np.ndarray = np.empty((0, STATES), np.float32)

    def read(self, turn: Turn[Any]) -> None:
        """Read the validation or training text, a batch at a time."""
        live = turn(self.live)
        try:
            split = shortened(text_of(self.model), min(MOST_TOKENS, MOST_WORK // live**2))
        except TrellisError:
            return
        states = np.full((len(split.tokens), min(STATES, live)), -1)
        probs = np.zeros(states.shape, np.float32)
        batches = Sentences(split, max(64, BLOCK // live**2))
        for batch, windows in zip(batches, batches.windows(), strict=True):
            found = turn(partial(self.best, batch))
            for row, start, length in zip(range(len(windows.starts)), windows.starts, windows.lengths, strict=True):
                for kept, values in zip((states, probs), found, strict=True):
                    kept[start : start + length] = values[row, :length]
            self.split, self.states, self.probs = split, states, probs

    @torch.no_grad()
    def live(self) -> int:
        """The number of states that can emit a token (its live states)."""
        support = self.model.parts().emission.support
        return self.model.num_states if support is None else support.shape[1]

    @torch.no_grad()
    def best(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """The most probable states of every token [B, T, n], and their posteriors."""
        batch = batch.to(self.model.device)
        prior, transition, emission, _ = self.model.chain(len(batch.tokens))
        potentials = emission.potentials(batch.tokens)
        probs = discrete.smooth(prior, transition, potentials, batch.lengths).probs
        top = probs.topk(min(STATES, probs.shape[-1]))
        states = top.indices if potentials.ids is None else potentials.ids.gather(-1, top.indices)
        return states.cpu().numpy(), top.values.float().cpu().numpy()

    def find(self, state: int, n: int) -> list[Answer]:
        """The n tokens at which a state is most probable."""
        if self.split is None:
            return []
        weights = np.where(self.states == state, self.probs, 0.0).max(1)
        places = np.argsort(-weights, kind="stable")[:n]
        return [
            in_context(self.model.vocab, self.split, int(t), AROUND, AROUND) | {"prob": float(weights[t])}
            for t in places
            if weights[t] >= SMALLEST
        ]


def text_of(model: HMM) -> Split:
    """The validation text of a model, or else its training text."""
    try:
        return load_split(model, None, "valid")
    except TrellisError:
        return load_split(model, None, "train")
