"""Hidden states matched to tags: which tag does each state stand for, and how often is that right."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from trellis.corpus.tagged import Tagged
from trellis.families.tag_hmm.model import TagHMM


def state_counts(model: TagHMM, tagged: Tagged) -> np.ndarray:
    """How many tokens of each tag are in each state, by the best path of states given the words alone: [Y, K];
    tags that the model does not know are left out."""
    number = model.lexicon.numbers
    counts = np.zeros((len(number), model.num_states))
    for tags, states in zip(tagged.tags, model.states(tagged.words), strict=True):
        for tag, state in zip(tags, states, strict=True):
            if tag in number:
                counts[number[tag], state] += 1
    return counts


def many_to_one(counts: np.ndarray) -> np.ndarray:
    """The commonest tag of each state: [Y, K] -> [K]."""
    return counts.argmax(0)


def one_to_one(counts: np.ndarray) -> np.ndarray:
    """A tag for each state, -1 for none, and no tag twice, so that most tokens are right: [Y, K] -> [K]."""
    tags, states = linear_sum_assignment(counts, maximize=True)
    found = np.full(counts.shape[1], -1)
    found[states] = tags
    return found


def num_right(counts: np.ndarray, tags: np.ndarray) -> float:
    """The tokens whose tag is the one that their state stands for: [Y, K], [K]."""
    chosen = np.flatnonzero(tags >= 0)
    return float(counts[tags[chosen], chosen].sum())


MATCHES = {"many": many_to_one, "one": one_to_one}
