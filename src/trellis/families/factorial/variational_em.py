"""Variational EM for factorial HMMs: mean-field E-step, then an M-step that raises the bound."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trellis.errors import TrellisError
from trellis.families.factorial import mean_field
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.emission_steps import Seen, climb, descend, guess_visits, scale
from trellis.families.factorial.loglinear import emission_slope
from trellis.families.factorial.mean_field import Field, Inferred, pad_steps
from trellis.families.factorial.model import FHMM
from trellis.learning.base import StepResult, under
from trellis.learning.em import step_rate
from trellis.learning.gradient import GradientLearner
from trellis.types import Batch

AUTO = "auto"
INNER_STEPS = {"scaling": 1, "adam": 1, "lbfgs": 5}  # emission updates per batch
MOST_ITERATIONS = 100  # L-BFGS iterations per epoch
SMALLEST_RATE = 1e-12  # of proximal L-BFGS


class StepwiseVariationalLearner(GradientLearner):
    """Stepwise EM. Batch k = 0, 1, ... updates the running counts with step size (k + 2)^-power; starts and transitions
    are re-estimated from these counts. The emissions take a few steps on their term of the bound. The steps are either
    iterative scaling towards the running counts, or, on the batch alone, Adam or L-BFGS with the proximal term |step|^2
    / (2 lr)."""

    runs_together = False

    def __init__(self, model: FHMM, config: FHMMTrainConfig, total_steps: int = 0) -> None:
        if not model.has_bound:
            raise TrellisError(f'A {model.params.combine} needs gradient training; set train.learner = "gradient".')
        model.params.starts.requires_grad_(False)
        model.params.transitions.requires_grad_(False)
        super().__init__(model, config, total_steps)
        self.fhmm, self.config = model, config
        self.inner = choose_inner(config.inner, factored=model.params.states is not None)
        self.inner_steps = config.inner_steps or INNER_STEPS[self.inner]
        self.running = {"visits": guess_visits(model.params)} if self.inner == "scaling" else {}  # per token

    def step(self, batch: Batch) -> StepResult:
        self.prepare()
        tokens = int(batch.lengths.sum())
        inferred = self.infer(batch)
        seen = Seen.of(batch, inferred.field)
        self.follow(count_moves(self.fhmm, inferred, batch), seen, tokens)
        if len(seen.words):
            getattr(self, f"by_{self.inner}")(seen)
        if self.average:
            self.average.update()
        self.steps += 1
        return StepResult(inferred.bound.sum(), tokens)

    def infer(self, batch: Batch, field: Field | None = None) -> Inferred:
        """The mean field of a batch on the CPU; with non-finite parameters, its bound is not finite."""
        given = self.fhmm.chains(), self.fhmm.params.emission(), batch.tokens, batch.lengths
        return mean_field.infer(*given, self.config.sweeps, self.fhmm.bound, field)

    def follow(self, found: dict[str, Tensor], seen: Seen, tokens: int) -> None:
        """Update the running counts, and the starts and transitions from them."""
        rate = step_rate(self.steps, self.config.em_power)
        if self.inner == "scaling":
            self.rate = rate
            found["visits"] = seen.visits(len(self.fhmm.vocab))
        for name, counts in found.items():
            self.running[name] = self.running.get(name, counts / tokens).lerp(counts / tokens, rate)
        maximise(self.fhmm, self.running, self.config.pseudocount / tokens)

    def by_scaling(self, seen: Seen) -> None:
        for _ in range(self.inner_steps):
            scale(self.fhmm.params, seen, self.running["visits"], self.config.pseudocount / len(seen.words))

    def by_adam(self, seen: Seen) -> None:
        for _ in range(self.inner_steps):
            self.optimizer.zero_grad()
            descend(self.fhmm.params, emission_slope(self.fhmm.params.emission(), *seen), len(seen.words))
            self.optimizer.step()

    def by_lbfgs(self, seen: Seen) -> None:
        climb(self.fhmm, self.weights.values(), seen, self.inner_steps, 1 / max(self.rate, SMALLEST_RATE), near=True)

    def state_tensors(self) -> dict[str, Tensor]:
        return super().state_tensors() | {f"running.{name}": value for name, value in self.running.items()}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        super().restore(tensors, json)
        self.running = {name: value.to(self.device) for name, value in under("running.", tensors).items()}


def choose_inner(name: str, factored: bool) -> str:
    """The emission update of this name. Raises for "scaling" with a factored theta, because scaling updates each entry
    of theta separately."""
    name = {AUTO: "adam" if factored else "scaling"}.get(name, name)
    if factored and name == "scaling":
        raise TrellisError('train.inner = "scaling" needs model.params = "table"; use adam or lbfgs.')
    return name


class VariationalEMLearner(StepwiseVariationalLearner):
    """Batch EM for texts that fit in memory. The mean field of a sentence starts from that of the previous epoch. At
    the end of an epoch, L-BFGS maximises the emission term of the bound, which is concave. The bound never
    decreases."""

    def __init__(self, model: FHMM, config: FHMMTrainConfig, total_steps: int = 0) -> None:
        super().__init__(model, config, total_steps)
        self.iterations, self.running = config.inner_steps or MOST_ITERATIONS, {}
        self.fields: dict[tuple[bytes, int], Seen] = {}  # keyed by tokens and occurrence within the epoch
        self.met: Counter[bytes] = Counter()

    def step(self, batch: Batch) -> StepResult:
        keys = [self.meet(row[:n].numpy().tobytes()) for row, n in zip(batch.tokens, batch.lengths, strict=True)]
        tokens = int(batch.lengths.sum())
        known = [self.fields[key] for key in keys if key in self.fields]
        before = self.assemble(known, batch) if len(known) == len(keys) else None
        inferred = self.infer(batch, before)
        for b, (key, n) in enumerate(zip(keys, batch.lengths.tolist(), strict=True)):
            words = batch.tokens[b, :n].to(self.device)
            self.fields[key] = Seen(words, *(value[b, :n] for value in inferred.field))
        for name, counts in count_moves(self.fhmm, inferred, batch).items():
            self.running[name] = self.running.get(name, torch.zeros_like(counts)) + counts
        self.steps += 1
        return StepResult(inferred.bound.sum(), tokens)

    def meet(self, sentence: bytes) -> tuple[bytes, int]:
        self.met[sentence] += 1
        return sentence, self.met[sentence]

    def assemble(self, known: list[Seen], batch: Batch) -> Field:
        """The stored fields of a batch's sentences, padded to its length."""
        stacked = [pad_sequence([getattr(one, name) for one in known], batch_first=True) for name in Field._fields]
        return Field(*(pad_steps(value, batch.tokens.shape[1]) for value in stacked))

    def end_epoch(self) -> None:
        """The M-step."""
        maximise(self.fhmm, self.running, self.config.pseudocount)
        known = [torch.cat(column) for column in zip(*self.fields.values(), strict=True)]
        spoken = known[0] >= 0
        seen = Seen(*(column[spoken] for column in known))
        climb(self.fhmm, self.weights.values(), seen, self.iterations, self.config.weight_decay, near=False)
        self.running, self.met = {}, Counter()

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = super().state_tensors()
        if self.fields:
            columns = [torch.cat(column) for column in zip(*self.fields.values(), strict=True)]
            tensors |= {f"fields.{name}": value for name, value in zip(Seen._fields, columns, strict=True)}
        return tensors

    def state_json(self) -> dict[str, Any]:
        met = [self.met[sentence] >= number for sentence, number in self.fields]
        return super().state_json() | {"lengths": [len(one.words) for one in self.fields.values()], "met": met}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        super().restore(tensors, json)
        self.fields, self.met, numbers = {}, Counter(), Counter[bytes]()
        columns = {name: value.to(self.device) for name, value in under("fields.", tensors).items()}
        split = [columns[name].split(json["lengths"]) for name in Seen._fields if columns]
        for met, *values in zip(json["met"], *split, strict=True):
            sentence = values[0].cpu().numpy().tobytes()
            numbers[sentence] += 1
            self.fields[sentence, numbers[sentence]] = Seen(*values)
            self.met[sentence] += met


def count_moves(model: FHMM, inferred: Inferred, batch: Batch) -> dict[str, Tensor]:
    """Expected starts and transitions, keyed start.m and transition.m."""
    lengths = batch.lengths.to(inferred.bound.device, non_blocking=True)
    found = mean_field.expect(model.chains(), inferred, lengths, model.sizes)
    return {f"{name}.{m}": getattr(one, name) for m, one in enumerate(found) for name in ("start", "transition")}


def maximise(model: FHMM, moves: dict[str, Tensor], pseudocount: float) -> None:
    starts, transitions = ([moves[f"{kind}.{m}"] for m in range(len(model.sizes))] for kind in ("start", "transition"))
    model.params.maximise(starts, transitions, pseudocount)
