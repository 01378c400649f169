"""What the states of an HMM have learned: how often they are visited, what they say, where they lead."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.hmm.model import HMM
from trellis.models.base import Ranked


class StateSummary(NamedTuple):
    """One state, as a person would want to see it."""

    state: int
    occupancy: float  # share of tokens
    telling: float  # nats: occupancy * KL(p(word | state) || p(word))
    words: Ranked
    next_states: list[tuple[int, float]]


@torch.no_grad()
def summarise_states(model: HMM, n: int = 10, words: int = 8, followers: int = 3) -> list[StateSummary]:
    """The n most telling states, most telling first."""
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
