"""Gradient ascent on the log-likelihood: AdamW, clipping, a schedule, and weight averaging."""

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from trellis import distributed
from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.learning.adamw import AdamW
from trellis.learning.average import WeightAverage
from trellis.learning.base import GradientModel, StepResult, under, wrong_checkpoint
from trellis.learning.divided import DividedTables
from trellis.learning.graph import Graphed
from trellis.learning.reduction import Gradients
from trellis.learning.schedule import make_schedule
from trellis.types import Batch


class GradientLearner:
    """Minimises the negative log-likelihood per token; the state passes from batch to batch without gradient.

    A step does not wait for the device: the log-likelihood stays on the device, and becomes nan if the gradient
    is not finite. In one process on a GPU, a whole step runs as one CUDA graph. If training runs in several
    processes, they divide the rows of each batch among themselves and add up their gradients outside of the graph.
    Very large tables are divided too (`DividedTables`).
    """

    runs_together: ClassVar[bool] = True  # in several processes

    def __init__(self, model: GradientModel, config: TrainConfig, total_steps: int = 0) -> None:
        self.model = model.train()
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if not self.weights:
            raise TrellisError(f"{type(model).__name__} has no parameters to train by gradient.")
        weights = list(self.weights.values())
        if not total_steps and model.anneals:
            raise TrellisError("model.dropout_end needs to know when training ends; set train.epochs or max_steps.")
        self.device = weights[0].device
        self.tables = DividedTables(table for table in model.sparsely_read() if table.requires_grad)
        updated = [self.tables.part(weight) for weight in weights]
        self.optimizer = AdamW(updated, config, clipped=weights)
        self.schedule = make_schedule(config, total_steps)
        self.average = WeightAverage(updated, config.average) if config.average else None
        self.max_norm = config.clip or math.inf
        self.total_steps, self.steps, self.idle = total_steps, 0, False
        self.rate = self.schedule.rate(0)
        self.belief: dict[str, Tensor] = {}
        self.stage: object = None
        self.gradients, self.seed = Gradients(weights), torch.initial_seed()
        self.together = distributed.is_joined()
        self.run = Graphed(self.differentiate if self.together else self.update, self.device)

    def step(self, batch: Batch) -> StepResult:
        """One gradient step on the batch's mean negative log-likelihood."""
        tokens = batch.num_tokens
        self.prepare()
        belief = {} if batch.all_fresh else self.belief
        tensors = {"tokens": batch.tokens, "lengths": batch.lengths, "fresh": batch.fresh}
        tensors |= {f"belief.{name}": value for name, value in belief.items()}
        if batch.total is not None:
            torch.manual_seed((self.seed + self.steps) % 2**63)  # dropout may draw more numbers in some processes
            tensors["total"] = torch.tensor(batch.total)
        equal = batch.equal_lengths and not self.model.any_lengths
        steady = (equal or self.model.any_lengths) and not self.model.synchronises
        steady = steady and not distributed.sums_within_steps()
        choice = equal, batch.all_fresh, batch.idle
        made = self.run(tensors, choice, steady)
        made = self.apply(made) if self.together else made
        self.steps, self.idle = self.steps + 1, batch.idle
        self.belief = under("belief.", made)
        return StepResult(made["log_likelihood"].clone(), tokens)

    def prepare(self) -> None:
        """Set the learning rate, the share in the weight average, and the dropout stage of the next step."""
        self.rate = self.schedule.rate(self.steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.rate)
            else:
                group["lr"] = self.rate
        if self.average:
            self.average.prepare(self.steps)
        stage = self.model.advance(self.steps / self.total_steps) if self.total_steps else None
        if stage != self.stage:
            self.run.forget()
            self.stage = stage

    def update(self, given: dict[str, Tensor], choice: Any) -> dict[str, Tensor]:
        """One training step, entirely on the device."""
        return self.apply(self.differentiate(given, choice))

    def differentiate(self, given: dict[str, Tensor], choice: Any) -> dict[str, Tensor]:
        """The log-likelihood of a batch, the state after it, and the gradients under the names `grad.*`."""
        equal_lengths, all_fresh, idle = choice
        batch = Batch(given["tokens"], given["lengths"], given["fresh"], equal_lengths, all_fresh)
        belief = under("belief.", given)
        for weight in self.weights.values():
            weight.grad = None
        carried = self.model.state_from_tensors(belief) if belief else None
        with distributed.stepping(), self.gradients.arriving(self.run.capturing), products_in_tf32(self.model.rough):
            with self.tables.served(self.model):
                log_likelihood, state = self.model.log_likelihood(batch, carried)
            self.gradients.touched = self.model.touched_rows()
            tokens = max(1, batch.tokens.numel()) if equal_lengths else batch.lengths.sum().clamp(min=1)
            log_likelihood = log_likelihood * 0 if idle else log_likelihood
            (-log_likelihood / given.get("total", tokens)).backward()
        after = {} if state is None else _plain(self.model.state_to_tensors(state))
        made = {"log_likelihood": log_likelihood.detach().double()}
        made |= {f"grad.{name}": weight.grad for name, weight in self.weights.items() if weight.grad is not None}
        if self.together:
            names = {weight: name for name, weight in self.weights.items()}
            touched = self.gradients.touched.items()
            made |= {f"rows.{names[weight]}": rows for weight, rows in touched if weight in names}
        return made | {f"belief.{name}": value for name, value in after.items()}

    def apply(self, made: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move the weights along the gradients; returns the log-likelihood and the state."""
        for name, weight in self.weights.items():
            weight.grad = made.get(f"grad.{name}")  # after the replay of a graph, the gradients of that graph
        self.gradients.touched = {self.weights[name]: rows for name, rows in under("rows.", made).items()}
        self.gradients.finish()
        self.tables.set_gradients()
        norm = self.optimizer.update(self.max_norm, self.average)
        log_likelihood = distributed.add_up(made["log_likelihood"]).where(norm.isfinite(), math.nan)
        return {"log_likelihood": log_likelihood} | {f"belief.{name}": v for name, v in under("belief.", made).items()}

    def end_epoch(self) -> None:
        """Reset the state: the next epoch begins at the start of the text."""
        self.belief = {}

    def observe(self, valid: float) -> None:
        self.schedule.observe(valid)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """A context in which the model is in evaluation mode, with the averaged weights if there is an average."""
        self.model.eval()
        for weight in self.weights.values():  # graphs and kernels change weights without torch's notice
            torch.autograd.graph.increment_version(weight)
        try:
            with self.average.applied() if self.average else nullcontext():
                self.tables.complete()
                yield
        finally:
            self.model.train()
        self.tables.complete()

    def state_tensors(self) -> dict[str, Tensor]:
        """The weights `model.*`, the state of the optimiser and the state of the model. With averaging, `model.*` are
        the averages, and `raw.*` the raw weights."""
        self.tables.complete()
        own = self.average.averages if self.average else {}
        averages = {w: self.tables.all_rows(w, own[self.tables.part(w)]) for w in self.weights.values() if own}
        state = self.model.state_dict(keep_vars=True)
        tensors = {f"model.{name}": averages.get(value, value) for name, value in state.items()}
        tensors |= {f"raw.{name}": value for name, value in state.items() if value in averages}
        tensors |= {f"belief.{name}": value for name, value in self.belief.items()}
        for name, weight in self.weights.items():
            moments = self.optimizer.state[self.tables.part(weight)].items()
            tensors |= {f"adam.{key}.{name}": self.tables.all_rows(weight, value) for key, value in moments}
        return tensors

    def state_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "rate": self.rate, "schedule": self.schedule.state_json()}

    def restore(self, tensors: dict[str, Tensor], json: dict[str, Any]) -> None:
        try:
            state = under("model.", tensors)
            self.model.load_state_dict(state)
            if self.average:
                self.average.reset()
            self.model.load_state_dict(state | under("raw.", tensors))
            self._restore_optimizer(under("adam.", tensors))
            self.belief = {name: value.to(self.device) for name, value in under("belief.", tensors).items()}
            self.steps, self.rate = operator.index(json["steps"]), float(json["rate"])
            self.schedule.restore(json["schedule"])
        except (RuntimeError, KeyError) as error:
            raise wrong_checkpoint(error) from error

    def _restore_optimizer(self, moments: dict[str, Tensor]) -> None:
        def own(key: str, name: str) -> Tensor:
            return self.tables.own_rows(self.weights[name], moments[f"{key}.{name}"])

        keys = {key.split(".", 1)[0] for key in moments}
        state = {
            index: {key: own(key, name) for key in keys if f"{key}.{name}" in moments}
            for index, name in enumerate(self.weights)
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": {i: s for i, s in state.items() if s}, "param_groups": groups})


@contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    """A context in which a GPU may multiply matrices of float32 in TF32."""
    if not allowed:
        yield
        return
    products = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    before = getattr(products, name)
    setattr(products, name, value)
    try:
        yield
    finally:
        setattr(products, name, before)


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detached copies in the memory layout that a checkpoint restores, since rounding depends on the layout."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
