"""What a step of training leaves out: whole states of each class, single transitions, features."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.kernels.mask import FEATURES, STATES, Mask, draw_mask, keys

KINDS = ("none", "state", "unstructured")
STAGES = 8  # in which a rate goes from its beginning to its end


class Draw(NamedTuple):
    """What one step leaves out. With `ids` the model is the smaller one over these states, numbered anew, of classes
    `partition` (None: every word may come from all of them); with `step` single starts and transitions are left out,
    by a hash that gives the same ones wherever it is asked."""

    ids: Tensor | None = None  # [K'], ascending, so class by class
    partition: Partition | None = None
    step: Tensor | None = None
    seed: int = 0
    rate: float = 0.0
    features: Tensor | None = None  # [F']: those that stay

    def mask(self, rows: Tensor, columns: Tensor) -> Mask | None:
        """Of the transitions between two lists of states, [R] and [S]."""
        return None if self.step is None else draw_mask(self.seed, self.step, rows, columns, self.rate)

    def starts(self, logits: Tensor) -> Tensor:
        """-inf for the starts that are left out: [K] -> [K]."""
        states = torch.arange(-1, len(logits), device=logits.device)
        mask = self.mask(states[:1], states[1:])
        return logits if mask is None else logits.masked_fill(~mask.keeps()[0], -torch.inf)


class Dropout(nn.Module):
    """Draws by (seed, number of draws so far), so that they repeat, and go on after a checkpoint as if it had not been.

    Whole states are left out of each class of a `partition`, or of all `states` where every word may come from all.

    The rate goes from `rate` to `end` in a few equal stages as training advances, see `advance`."""

    draws: Tensor

    def __init__(
        self, kind: str, rate: float, end: float | None = None, partition: Partition | None = None, seed: int = 0,
        features: int = 0, feature_rate: float = 0.0, states: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        end = rate if end is None else end
        if kind == "state" and partition is None and not states:
            raise TrellisError(
                "State dropout needs classes of states that no word of another class shares: "
                'use model.emission = "brown", "cloned" or "full", or another model.dropout.'
            )
        self.kind, self.rate, self.end, self.seed, self.now = kind, rate, end, seed, rate
        self.features, self.states = features, states
        self.kept_features = max(1, round(features * (1 - feature_rate))) if features else 0
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
        """Training has come so far, from 0 to 1."""
        stage = min(int(done * STAGES), STAGES - 1) / (STAGES - 1)
        self.now = round(self.rate + stage * (self.end - self.rate), 6)

    def draw(self, partition: Partition | None) -> Draw | None:
        """What the next step leaves out."""
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
        scores = self.scores(step, STATES, partition.num_states if partition else self.states)
        if partition is None:
            kept = max(1, round(self.states * (1 - self.now)))
            return Draw(scores.topk(kept).indices.sort().values, features=features)
        thin = partition.thinned(self.now)
        return Draw(partition.choose(scores, thin), thin, features=features)

    def draw_features(self, step: Tensor) -> Tensor | None:
        if not self.drops_features:
            return None
        return self.scores(step, FEATURES, self.features).topk(self.kept_features).indices

    def scores(self, step: Tensor, purpose: int, count: int) -> Tensor:
        """By which some of `count` states or features are chosen: [count]."""
        return keys(self.seed, step, purpose, torch.arange(count, device=step.device))
