"""Dropout of whole states per class, of single transitions, and of features."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.kernels.mask import FEATURES, STATES, Mask, choose, draw_mask, keys

KINDS = ("none", "state", "unstructured")
STAGES = 8  # stages in which a rate moves from its initial to its final value
ALIGNED, MANY = 32, 512  # from MANY on, the number of kept states or features is a multiple of ALIGNED


class Draw(NamedTuple):
    """One dropout sample: the states `ids` that are kept, renumbered.

    `partition` has the classes of the kept states; if None, every state can emit every word. If `step` is given, single
    start states and transitions, selected by a hash, have probability zero."""

    ids: Tensor | None = None  # [K'], ascending, hence grouped by class
    partition: Partition | None = None
    step: Tensor | None = None
    seed: int = 0
    rate: float = 0.0
    features: Tensor | None = None  # [F']: the features kept

    def mask(self, rows: Tensor, columns: Tensor) -> Mask | None:
        """The dropout mask of transitions between two lists of states, [R] and [S]."""
        return None if self.step is None else draw_mask(self.seed, self.step, rows, columns, self.rate)

    def starts(self, logits: Tensor) -> Tensor:
        """Set the logits of dropped start states to -inf: [K] -> [K]."""
        states = torch.arange(-1, len(logits), device=logits.device)
        mask = self.mask(states[:1], states[1:])
        return logits if mask is None else logits.masked_fill(~mask.keeps()[0], -torch.inf)


class Dropout(nn.Module):
    """Draws dropout samples. The n-th sample depends only on the seed and n, so a resumed run draws the same samples.

    States are dropped from each class of a `partition`, or from all `states` if there are no classes. As training
    progresses, the rate changes from `rate` to `end` in a few equal stages (see `advance`)."""

    draws: Tensor

    def __init__(
        self, kind: str, rate: float, end: float | None = None, partition: Partition | None = None, seed: int = 0,
        features: int = 0, feature_rate: float = 0.0, states: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        end = rate if end is None else end
        if kind == "state" and partition is None and not states:
            raise TrellisError(
                "State dropout needs disjoint classes of states: "
                'use model.emission = "brown", "cloned" or "full", or another model.dropout.'
            )
        self.kind, self.rate, self.end, self.seed, self.now = kind, rate, end, seed, rate
        self.features, self.states = features, states
        self.kept_features = number_kept(features, feature_rate) if features else 0
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    @property
    def drops_features(self) -> bool:
        return self.kept_features < self.features

    @property
    def anneals(self) -> bool:
        return self.end != self.rate

    @property
    def draws_anything(self) -> bool:
        return self.kind != "none" or self.drops_features

    def advance(self, done: float) -> None:
        """Update the rate for the fraction of training that is done."""
        stage = min(int(done * STAGES), STAGES - 1) / (STAGES - 1)
        self.now = round(self.rate + stage * (self.end - self.rate), 6)

    def draw(self, partition: Partition | None) -> Draw | None:
        """The dropout sample of the next step."""
        states = self.kind != "none" and self.now > 0
        if not states and not self.drops_features:
            return None
        self.draws += 1
        step = self.draws.clone()
        features = self.draw_features(step)
        if not states:
            return Draw(features=features)
        if self.kind == "unstructured":
            return Draw(step=step, seed=self.seed, rate=self.now, features=features)
        thin = partition and partition.thinned(self.now)
        if partition and thin and partition.own is None and thin.own is None:
            ids = choose(self.seed, step, STATES, partition.num_classes, partition.live, thin.live)
            if ids is not None:
                return Draw(ids, thin, features=features)
        scores = self.scores(step, STATES, partition.num_states if partition else self.states)
        if partition is None or thin is None:
            kept = number_kept(self.states, self.now)
            return Draw(scores.topk(kept).indices.sort().values, features=features)
        return Draw(partition.choose(scores, thin), thin, features=features)

    def draw_features(self, step: Tensor) -> Tensor | None:
        if not self.drops_features:
            return None
        return self.scores(step, FEATURES, self.features).topk(self.kept_features).indices

    def scores(self, step: Tensor, purpose: int, count: int) -> Tensor:
        """Random scores by which states or features are selected: [count]."""
        return keys(self.seed, step, purpose, torch.arange(count, device=step.device))


def number_kept(count: int, rate: float) -> int:
    """How many of `count` states or features are kept. On a GPU, products are slow if a large dimension is not a
    multiple of a sufficient power of two."""
    kept = max(1, round(count * (1 - rate)))
    return kept if kept < MANY else min(count, ALIGNED * round(kept / ALIGNED))
