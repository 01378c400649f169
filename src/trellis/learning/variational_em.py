"""Variational EM for factorial HMMs: a mean field for the sentences, then parameters that raise the bound."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trellis.config import TrainConfig
from trellis.emissions.slope import Slope, emission_slope
from trellis.inference import variational
from trellis.inference.ascent import pad_steps, word_places
from trellis.inference.variational import Field, Inferred
from trellis.learning.base import StepResult
from trellis.learning.gradient import GradientLearner
from trellis.models.fhmm import FHMM
from trellis.types import Batch

INNER_STEPS = 1  # gradient steps on the emissions for each batch
MOST_ITERATIONS = 100  # of L-BFGS for each epoch


class StepwiseVariationalLearner(GradientLearner):
    """After each batch the running counts of starts and transitions move towards the batch's by rate (k + 2)^-power,
    and Adam takes a few steps on the emissions' part of the batch's bound."""

    def __init__(self, model: FHMM, config: TrainConfig, total_steps: int = 0) -> None:
        model.params.starts.requires_grad_(False)
        model.params.transitions.requires_grad_(False)
        super().__init__(model, config, total_steps)
        self.fhmm, self.config = model, config
        self.inner_steps = config.inner_steps or INNER_STEPS
        self.moves: dict[str, Tensor] = {}  # running counts per token

    def step(self, batch: Batch) -> StepResult:
        tokens = int(batch.lengths.sum())
        inferred = self.infer(batch)
        self.move(inferred, batch, tokens)
        self.prepare()
        words, probs, tilts = observed(batch, inferred.field)
        for _ in range(self.inner_steps):
            self.optimizer.zero_grad()
            descend(self.fhmm, emission_slope(self.fhmm.params.emission(), words, probs, tilts), tokens)
            self.optimizer.step()
        if self.average:
            self.average.update()
        self.steps += 1
        return StepResult(inferred.bound.sum(), tokens)

    def infer(self, batch: Batch, field: Field | None = None) -> Inferred:
        """The mean field of a batch on the CPU; parameters that are no numbers show in its bound."""
        given = self.fhmm.chains(), self.fhmm.params.emission(), batch.tokens, batch.lengths
        return variational.infer(*given, self.config.sweeps, self.fhmm.bound, field)

    def move(self, inferred: Inferred, batch: Batch, tokens: int) -> None:
        """Starts and transitions from their running counts."""
        rate = (self.steps + 2.0) ** -self.config.em_power
        found = count_moves(self.fhmm, inferred, batch)
        for name, counts in found.items():
            before = self.moves.get(name, counts / tokens)
            self.moves[name] = before.lerp(counts / tokens, rate)
        maximise(self.fhmm, self.moves, self.config.pseudocount / tokens)

    def state_tensors(self) -> dict[str, Tensor]:
        return super().state_tensors() | {f"moves.{name}": value for name, value in self.moves.items()}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        super().restore(tensors, json)
        self.moves = under("moves.", tensors, self.device)


class Remembered(NamedTuple):
    """The mean field of one sentence, kept from epoch to epoch."""

    words: Tensor  # [T]
    probs: Tensor  # [T, S]
    tilts: Tensor  # [T, S]


class VariationalEMLearner(StepwiseVariationalLearner):
    """The whole text at a time, for one that fits in memory: each sentence's mean field goes on where it was an epoch
    ago, and at the epoch's end L-BFGS climbs the concave bound of the emissions. The bound never falls."""

    def __init__(self, model: FHMM, config: TrainConfig, total_steps: int = 0) -> None:
        super().__init__(model, config, total_steps)
        self.iterations = config.inner_steps or MOST_ITERATIONS
        self.fields: dict[tuple[bytes, int], Remembered] = {}  # by tokens, and how often they were met in this epoch
        self.met: Counter[bytes] = Counter()

    def step(self, batch: Batch) -> StepResult:
        keys = [self.meet(row[:n].numpy().tobytes()) for row, n in zip(batch.tokens, batch.lengths, strict=True)]
        tokens = int(batch.lengths.sum())
        known = [self.fields[key] for key in keys if key in self.fields]
        before = self.assemble(known, batch) if len(known) == len(keys) else None
        inferred = self.infer(batch, before)
        for b, (key, n) in enumerate(zip(keys, batch.lengths.tolist(), strict=True)):
            words = batch.tokens[b, :n].to(self.device)
            self.fields[key] = Remembered(words, *(value[b, :n] for value in inferred.field))
        for name, counts in count_moves(self.fhmm, inferred, batch).items():
            self.moves[name] = self.moves.get(name, torch.zeros_like(counts)) + counts
        self.steps += 1
        return StepResult(inferred.bound.sum(), tokens)

    def meet(self, sentence: bytes) -> tuple[bytes, int]:
        self.met[sentence] += 1
        return sentence, self.met[sentence]

    def assemble(self, known: list[Remembered], batch: Batch) -> Field:
        """What is remembered of a batch's sentences, padded to its steps."""
        stacked = [pad_sequence([getattr(one, name) for one in known], batch_first=True) for name in Field._fields]
        return Field(*(pad_steps(value, batch.tokens.shape[1]) for value in stacked))

    def end_epoch(self) -> None:
        """The M-step."""
        maximise(self.fhmm, self.moves, self.config.pseudocount)
        self.climb()
        self.moves, self.met = {}, Counter()

    def climb(self) -> None:
        """L-BFGS on the emissions' part of the bound, less the penalty weight_decay / 2 |weights|^2 per token."""
        words, probs, tilts = (torch.cat(column) for column in zip(*self.fields.values(), strict=True))
        seen = words >= 0
        weights = list(self.weights.values())
        optimizer = torch.optim.LBFGS(weights, max_iter=self.iterations, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            slope = emission_slope(self.fhmm.params.emission(), words[seen], probs[seen], tilts[seen])
            descend(self.fhmm, slope, len(words))
            penalty = sum(0.5 * self.config.weight_decay * weight.square().sum() for weight in weights)
            torch.as_tensor(penalty).backward() if self.config.weight_decay else None
            return torch.as_tensor(penalty).detach() - slope.value / len(words)

        optimizer.step(closure)

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = super().state_tensors()
        if self.fields:
            columns = [torch.cat(column) for column in zip(*self.fields.values(), strict=True)]
            tensors |= {f"fields.{name}": value for name, value in zip(Remembered._fields, columns, strict=True)}
        return tensors

    def state_json(self) -> dict[str, Any]:
        met = [self.met[sentence] >= number for sentence, number in self.fields]
        return super().state_json() | {"lengths": [len(one.words) for one in self.fields.values()], "met": met}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        super().restore(tensors, json)
        self.fields, self.met, numbers = {}, Counter(), Counter[bytes]()
        columns = under("fields.", tensors, self.device)
        split = [columns[name].split(json["lengths"]) for name in Remembered._fields if columns]
        for met, *values in zip(json["met"], *split, strict=True):
            sentence = values[0].cpu().numpy().tobytes()
            numbers[sentence] += 1
            self.fields[sentence, numbers[sentence]] = Remembered(*values)
            self.met[sentence] += met


def observed(batch: Batch, field: Field) -> tuple[Tensor, Tensor, Tensor]:
    """The words of a batch [n] and their q and c [n, S], where the field is."""
    places = word_places(batch.tokens, batch.lengths)
    words, there = batch.tokens.flatten()[places], places.to(field.probs.device, non_blocking=True)
    probs, tilts = (value.flatten(0, 1).index_select(0, there) for value in field)
    return words.to(probs.device, non_blocking=True), probs, tilts


def descend(model: FHMM, slope: Slope, tokens: int) -> None:
    """Add the gradient of minus the bound per token to the parameters."""
    params = model.params
    torch.autograd.backward([params.theta(), params.bias + 0], [-slope.theta / tokens, -slope.bias / tokens])


def count_moves(model: FHMM, inferred: Inferred, batch: Batch) -> dict[str, Tensor]:
    """Expected starts and transitions by name, start.m and transition.m."""
    lengths = batch.lengths.to(inferred.bound.device, non_blocking=True)
    moves = variational.expect(model.chains(), inferred, lengths, model.sizes)
    return {f"{name}.{m}": value for m, move in enumerate(moves) for name, value in move._asdict().items()}


def maximise(model: FHMM, moves: dict[str, Tensor], pseudocount: float) -> None:
    starts, transitions = ([moves[f"{kind}.{m}"] for m in range(len(model.sizes))] for kind in ("start", "transition"))
    model.params.maximise(starts, transitions, pseudocount)


def under(prefix: str, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): value.to(device) for k, value in tensors.items() if k.startswith(prefix)}
