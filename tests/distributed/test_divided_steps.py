"""Training on shards is divided among processes; gradients are sent while others are still being computed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from processes import together
from test_together import EXACT, ROUNDING, TEXT, in_float64

import trellis
from trellis.corpus.shards import Shards
from trellis.learning import reduction
from trellis.learning.gradient import GradientLearner
from trellis.training import fit
from trellis.transitions import stripes
from trellis.types import Batch

GIVEN: dict[str, Any] = {"device": "cpu", "ngram": 0, "epochs": 2, "lanes": 5, "window": 6}
LEARNERS = {"em": EXACT, "stepwise-em": EXACT, "gradient": ROUNDING}  # with the tolerance of their parameters


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of different lengths."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, (begin, end) in enumerate([(0, 20), (20, 65), (65, 100)]):
        (folder / f"{number}.txt").write_text("\n".join(TEXT[begin:end]) + "\n")
    return folder


def test_shards_are_divided_among_processes(shards: Path) -> None:
    def train() -> tuple[set[int], dict[str, dict[str, torch.Tensor]]]:
        torch.set_num_threads(1)
        own, rows, found = Shards._own_batch, set[int](), {}

        def watched(*given: Any) -> Batch:
            batch = own(*given)
            rows.add(len(batch.lengths))
            return batch

        with (
            mock.patch.object(fit, "by_steps", partial(fit.by_steps, build=in_float64)),
            mock.patch.object(Shards, "_own_batch", watched),
        ):
            for learner in LEARNERS:
                options = GIVEN | {"states": 4, "learner": learner, "shards": str(shards), "order": "streams"}
                found[learner] = dict(trellis.train(TEXT, **options).model.params.state_dict())
        return rows, found

    [(_, alone)] = together(1, train)
    for (rows, found), lanes in zip(together(2, train), (3, 2), strict=True):
        assert rows == {lanes}
        for learner, allowed in LEARNERS.items():
            for name, value in alone[learner].items():
                assert torch.allclose(found[learner][name], value, rtol=allowed, atol=allowed), (learner, name)


def test_buckets_are_sent_before_the_backward_pass_ends() -> None:
    def train() -> list[str]:
        events: list[str] = []
        begin, backward, reduce = GradientLearner.__init__, torch.Tensor.backward, dist.all_reduce

        def watch(self: GradientLearner, *given: Any, **more: Any) -> None:
            begin(self, *given, **more)
            for weight in self.weights.values():
                weight.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))

        def noted(what: str, call: Any) -> Any:
            def note(*given: Any, **more: Any) -> Any:
                events.append(what)
                return call(*given, **more)

            return note

        def passed(*given: Any, **more: Any) -> None:
            events.append("begin")
            backward(*given, **more)
            events.append("end")

        with (
            mock.patch.object(reduction, "BUCKET", 1),
            mock.patch.object(GradientLearner, "__init__", watch),
            mock.patch.object(torch.Tensor, "backward", passed),
            mock.patch.object(dist, "all_reduce", noted("sum", reduce)),
        ):
            trellis.train(TEXT, family="lstm", dim=4, net_dropout=0.0, **GIVEN | {"epochs": 1})
        return events

    for events in together(2, train):
        assert not isinstance(events, BaseException), repr(events)
        steps = [part.split(" end")[0].split() for part in " ".join(events).split("begin ")[1:]]
        assert len(steps) > 10
        for step in steps:
            last = len(step) - 1 - step[::-1].index("gradient")
            assert step[:last].count("sum") >= step.count("gradient") // 2 > 1


def forget(learner: GradientLearner, table: torch.nn.Parameter) -> None:
    """Set the rows of other processes to nan."""
    with torch.no_grad():
        for row in set(range(len(table))).difference(learner.tables.own_rows(table, torch.arange(len(table))).tolist()):
            table[row] = torch.nan


def trained(rate: float) -> tuple[GradientLearner, torch.nn.Parameter]:
    """A learner of a model of which dropout keeps a share 1 - rate of 24 states, and its table of embeddings."""
    options = GIVEN | {"states": 24, "params": "neural", "emission": "brown", "classes": 3, "dim": 6, "average": 0.9}
    options |= {"dropout": "state", "dropout_rate": rate, "learner": "gradient", "order": "streams"}
    learners: list[GradientLearner] = []
    begin = GradientLearner.__init__

    def watch(self: GradientLearner, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        learners.append(self)

    with mock.patch.object(GradientLearner, "__init__", watch), mock.patch.object(stripes, "FEWEST", 2):
        trellis.train(TEXT, **options)
    [learner] = learners
    return learner, learner.weights["params.embeddings.0.own"]


@pytest.mark.parametrize(("rate", "size", "own"), [(0.9, 2, 12), (0.9, 3, 8), (0.85, 2, 24)])
def test_each_process_has_the_state_of_its_own_rows(rate: float, size: int, own: int) -> None:
    """If dropout keeps many states, tables are not divided."""

    def shapes() -> set[tuple[int, ...]]:
        learner, table = trained(rate)
        assert learner.average is not None
        part = learner.tables.part(table)
        moments = [value for value in learner.optimizer.state[part].values() if value.dim()]
        return {tuple(value.shape) for value in (*moments, learner.average.averages[part])}

    assert together(size, shapes) == [{(own, 6)}] * size


def test_rows_of_other_processes_are_fetched_when_they_are_read() -> None:
    def known() -> list[int]:
        learner, table = trained(0.9)
        found = []

        def count() -> None:
            found.append(int(table.isfinite().all(1).sum()))
            forget(learner, table)

        count()
        learner.tables.read = {table: torch.arange(4)}  # by the last step
        learner.tables.fetch({table: torch.arange(2, 6)})
        count()
        learner.state_tensors()
        count()
        with learner.evaluated():
            count()
        count()
        return found

    assert together(2, known) == [[24, 12, 24, 24, 24], [24, 18, 24, 24, 24]]
