"""Learning-rate schedules. The rate is the product of the peak rate, a warm-up factor and a shape."""

import math
import operator
from typing import Any

from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.options import choose


class Constant:
    """A constant rate after a warm-up: lr · min(1, (step + 1) / warmup). The schedules below multiply this by their
    `shape`, a factor in [lr_floor, 1]."""

    def __init__(self, config: TrainConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps

    def rate(self, step: int) -> float:
        """The learning rate of a step; the first step is 0."""
        warmup = min(1.0, (step + 1) / self.config.warmup) if self.config.warmup else 1.0
        return self.config.lr * warmup * self.shape(step)

    def shape(self, step: int) -> float:
        return 1.0

    def observe(self, valid: float) -> None:
        """Record the validation perplexity after an evaluation."""

    def state_json(self) -> dict[str, Any]:
        return {}

    def restore(self, json: dict[str, Any]) -> None:
        """Restore a saved state."""


class Cosine(Constant):
    """A rate that falls along half a period of a cosine, from lr after the warm-up to lr · lr_floor at the end."""

    def __init__(self, config: TrainConfig, total_steps: int) -> None:
        super().__init__(config, total_steps)
        if not total_steps:
            raise TrellisError("The cosine schedule needs the total number of steps; set train.epochs or max_steps.")

    def shape(self, step: int) -> float:
        warmup, floor = self.config.warmup, self.config.lr_floor
        done = min(1.0, max(0, step - warmup) / max(1, self.total_steps - 1 - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))


class Plateau(Constant):
    """Multiplies the rate by lr_factor after lr_patience evaluations in a row without lower validation perplexity."""

    def __init__(self, config: TrainConfig, total_steps: int) -> None:
        super().__init__(config, total_steps)
        self.scale, self.best, self.bad_checks = 1.0, math.inf, 0

    def shape(self, step: int) -> float:
        return max(self.config.lr_floor, self.scale)

    def observe(self, valid: float) -> None:
        self.bad_checks = 0 if valid < self.best else self.bad_checks + 1
        self.best = min(self.best, valid)
        if self.bad_checks >= max(1, self.config.lr_patience):
            self.scale, self.bad_checks = self.scale * self.config.lr_factor, 0

    def state_json(self) -> dict[str, Any]:
        return {"scale": self.scale, "best": self.best, "bad_checks": self.bad_checks}

    def restore(self, json: dict[str, Any]) -> None:
        self.scale, self.best = float(json["scale"]), float(json["best"])
        self.bad_checks = operator.index(json["bad_checks"])


SCHEDULES = {"constant": Constant, "cosine": Cosine, "plateau": Plateau}


def make_schedule(config: TrainConfig, total_steps: int = 0) -> Constant:
    """The schedule named by `config.schedule`; `total_steps` is 0 if unknown."""
    return choose(SCHEDULES, config.schedule, "train.schedule")(config, total_steps)
