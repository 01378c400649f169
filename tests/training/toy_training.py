"""A small real training: a softmax bigram model with dropout and a carried belief, on an artificial text.

Run as a program it trains in a child process, killed with SIGKILL at random moments and resumed, to the end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import TrainConfig
from trellis.learning.base import GradientModel
from trellis.learning.gradient import GradientLearner
from trellis.progress import set_quiet
from trellis.training.loop import fit
from trellis.training.state import TrainState
from trellis.types import Batch

VOCABULARY, WIDTH, ROWS, LENGTH = 12, 6, 4, 5


class Bigram(GradientModel):
    """log p(x_t | x_{t-1}, m) with m a running mean of embeddings, carried from batch to batch."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=generator))
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.output.weight = self.embed
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def log_likelihood(self, batch: Batch, state: tuple[Tensor] | None) -> tuple[Tensor, tuple[Tensor]]:
        memory = torch.zeros(len(batch.tokens), WIDTH) if state is None else state[0]
        memory = torch.where(batch.fresh[:, None], 0.0, memory)
        inputs, targets = self.embed[batch.tokens[:, :-1]], batch.tokens[:, 1:]
        scores = self.output(self.dropout(inputs + memory[:, None])).log_softmax(-1)
        self.seen += self.training
        log_likelihood = scores.gather(-1, targets[..., None]).sum()
        return log_likelihood, (0.5 * memory + 0.5 * inputs.mean(1),)

    def state_to_tensors(self, state: tuple[Tensor]) -> dict[str, Tensor]:
        return {"memory": state[0]}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> tuple[Tensor]:
        return (tensors["memory"],)


class ToyBatches:
    """Cuts a text in pieces and yields them in a new order each epoch."""

    def __init__(self, count: int = 7, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        jumps = torch.randint(1, 4, (count, ROWS, LENGTH), generator=generator)
        self.pieces = jumps.cumsum(-1) % VOCABULARY
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.position < len(self):
            self.position += 1
            fresh = torch.full((ROWS,), self.position == 1)
            lengths = torch.full((ROWS,), LENGTH - 1)  # the first token of a piece is given
            yield Batch(self.pieces[order[self.position - 1]], lengths, fresh)
        self.epoch, self.position = self.epoch + 1, 0

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class ToyTraining:
    """A learner, its batches and its evaluation, fresh from the seed."""

    def __init__(self, config: TrainConfig) -> None:
        torch.manual_seed(0)
        self.config, self.batches, self.valid = config, ToyBatches(), ToyBatches(count=2, seed=2)
        self.model = Bigram()
        self.learner = GradientLearner(self.model, config, config.total_steps(len(self.batches)))

    def perplexity(self) -> float:
        with torch.no_grad():
            results = [(self.model.log_likelihood(batch, None)[0], batch.tokens[:, 1:].numel()) for batch in self.valid]
        total, tokens = (sum(column) for column in zip(*results, strict=True))
        return float(torch.exp(-total / tokens))

    def fit(self, folder: Path, resume: bool = True, evaluate: Callable[[], float] | None = None) -> TrainState:
        return fit(self.learner, self.batches, evaluate or self.perplexity, self.config, folder, resume)


LONG = TrainConfig(
    epochs=60,
    log_every=9,
    eval_every=20,
    checkpoint_steps=8,
    checkpoint_seconds=0.02,
    lr=0.05,
    schedule="plateau",
    warmup=30,
    average=0.98,
)


def in_child(folder: Path, kill_after: float | None) -> bool:
    """Train in a forked process; True if it was killed, `kill_after` seconds beyond its first new checkpoint."""
    last = folder / "last.safetensors"
    before = last.stat().st_mtime_ns if last.exists() else 0
    child = os.fork()
    if not child:
        ToyTraining(LONG).fit(folder)
        os._exit(0)
    while kill_after is not None and os.waitpid(child, os.WNOHANG) == (0, 0):
        if last.exists() and last.stat().st_mtime_ns != before:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1] == signal.SIGKILL
        time.sleep(0.0005)
    if kill_after is None and os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the training failed")
    return False


if __name__ == "__main__":
    set_quiet()
    whole, killed = Path(sys.argv[1]), Path(sys.argv[2])
    ToyTraining(LONG)  # slow first imports happen here, not in every child
    in_child(whole, None)
    moments = random.Random(int(sys.argv[3]))
    print(sum(in_child(killed, moments.uniform(0, 0.04)) for _ in range(8)))
    in_child(killed, None)
