"""Initial emissions for data with some known states, with states that are numbered like the labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from trellis.emissions import Emission
from trellis.estimators.blocks import Block
from trellis.estimators.inputs import Array, Observations
from trellis.estimators.monitor import Restart
from trellis.parts import Prior

UNLABELLED = 3.0  # total weight of all observations in the initial emissions, relative to the labelled ones alone


def start_from_labels(
    model: Any, restarts: Sequence[Restart], letters: str, observed: Observations, prior: Prior
) -> None:
    """Permute the states of the random initial emissions to match the labels, then estimate the emissions from the
    labelled observations and, with a weight of at most 1, from all observations.

    Emissions set by hand are not changed. Neither are those of a DenseHMM, which are computed from vectors."""
    drawn = {model.letters[letter] for letter in letters}
    known = observed.states is not None and (observed.states >= 0) & ~observed.missing
    by_hand = not drawn.issuperset(model._emission_attributes())
    if by_hand or "tied_emissions" in model.unsupported or not np.any(known):
        return
    labelled = model._blocks(observed._replace(missing=~np.asarray(known)))
    share = min(1.0, UNLABELLED * np.sum(known) / max(1, (~observed.missing).sum()))
    for restart in restarts:
        parts = restart.parts
        if model._constraints() is None:
            order = model._tensor(matched(parts.emission, labelled, model.n_components)).long()
            parts.emission = parts.emission.take(order)
        (here,), (everywhere,) = (model._expect([parts], blocks) for blocks in (labelled, model._blocks(observed)))
        found = parts.maximised(here.plus(everywhere, share), prior._replace(start=None, transition=None))
        parts.emission = found.emission


def matched(emission: Emission, blocks: Sequence[Block], states: int) -> Array:
    """The state of each label, [K], in the one-to-one matching in which states explain the observations best."""
    overlap = np.zeros((states, states))
    for block in blocks:
        probs = emission.potentials(block.observations).gather().softmax(-1).cpu().numpy()
        labels = np.where(observed_steps(block), block.states.cpu().numpy(), -1)  # type: ignore[union-attr]
        np.add.at(overlap, labels[labels >= 0], probs[labels >= 0])
    return linear_sum_assignment(-overlap)[1]


def observed_steps(block: Block) -> Array:
    """Mask of the observations that are not missing, [B, T]."""
    places: Any = block.observations
    return getattr(places, "rows", places).cpu().numpy() >= 0
