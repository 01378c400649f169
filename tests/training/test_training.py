"""The training loop: limits, records, orderly and disorderly ends, and the same result after any interruption."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import toy_training
from toy_training import VOCABULARY, Bigram, ToyTraining

from trellis.config import TrainConfig
from trellis.errors import TrellisError
from trellis.learning.base import GradientModel
from trellis.learning.gradient import GradientLearner
from trellis.storage import load_tensors, save_tensors
from trellis.training import loop
from trellis.training.checkpoint import BEST, LAST, load_weights, read_details, save_checkpoint

TIMING = ("seconds", "tokens_per_second")
SHORT = TrainConfig(epochs=3, log_every=4, checkpoint_seconds=0, lr=0.05, clip=1.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def metrics(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def assert_same_runs(left: Path, right: Path) -> None:
    """Equal to the last bit: all tensors of both checkpoints, the counters and the metrics."""
    for name in (LAST, BEST):
        ours, theirs = load_tensors(left / name), load_tensors(right / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
        states = [read_details(folder / name) for folder in (left, right)]
        for details in states:
            del details["state"]["seconds"], details["state"]["window_seconds"]
        assert states[0] == states[1]
    assert metrics(left) == metrics(right)


class Killed(Exception):  # noqa: N818
    """Stands for a kill inside one process: nothing survives but the files."""


def kill_at(training: ToyTraining, step: int) -> None:
    """Make the learner die in the middle of a step."""
    learn = training.learner.step

    def step_or_die(batch):
        if training.learner.steps == step:
            raise Killed
        return learn(batch)

    training.learner.step = step_or_die


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"average": 0.9, "schedule": "cosine", "warmup": 3},
        {"average": 0.2, "schedule": "plateau", "eval_every": 2, "patience": 9, "lr": 1.0},
        {"eval_every": 5, "max_steps": 17, "weight_decay": 0.1},
    ],
    ids=lambda changes: changes.get("schedule", "constant"),
)
def test_a_training_that_dies_at_every_few_steps_ends_the_same(tmp_path: Path, changes: dict) -> None:
    config = replace(SHORT, **changes)
    ToyTraining(config).fit(tmp_path / "whole")
    rates = {line["lr"] for line in metrics(tmp_path / "whole")}
    assert (len(rates) > 1) == (config.schedule != "constant")
    for step in (0, 1, 2, 6, 7, 8, 13, 14, 16):
        training = ToyTraining(replace(config, checkpoint_steps=1 + step % 3))
        kill_at(training, step)
        with pytest.raises(Killed):
            training.fit(tmp_path / "killed")
    ToyTraining(config).fit(tmp_path / "killed")
    assert_same_runs(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("best_step", [7, 14, 21])
@pytest.mark.parametrize("files", range(4))
def test_a_training_that_dies_between_two_files_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, best_step: int
) -> None:
    written = []

    def save_or_die(path: Path, *parts: Any) -> None:
        if len(written) == files:
            raise Killed
        written.append(path)
        save_checkpoint(path, *parts)

    def train(name: str) -> None:
        training = ToyTraining(SHORT)
        training.fit(tmp_path / name, evaluate=lambda: abs(training.learner.steps - best_step))

    train("whole")
    monkeypatch.setattr(loop, "save_checkpoint", save_or_die)
    with pytest.raises(Killed):
        train("killed")
    monkeypatch.undo()
    train("killed")
    assert_same_runs(tmp_path / "whole", tmp_path / "killed")


def test_sigkill_at_random_moments_and_resume_end_the_same(tmp_path: Path) -> None:
    arguments = [tmp_path / "whole", tmp_path / "killed", "0"]
    program = [sys.executable, toy_training.__file__, *arguments]
    result = subprocess.run(program, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 4, "too few trainings were killed before they ended"
    assert_same_runs(tmp_path / "whole", tmp_path / "killed")


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    training = ToyTraining(replace(SHORT, lr=0.0))
    torch.nn.init.zeros_(training.model.embed)
    state = training.fit(tmp_path)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [4, 7, 8, 12, 14, 16, 20, 21]
    assert [line["epoch"] for line in lines] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert [line["valid_ppl"] is not None for line in lines] == [line["step"] % 7 == 0 for line in lines]
    assert [line["tokens"] for line in lines] == [16 * line["step"] for line in lines]
    assert [line["train_ppl"] for line in lines] == pytest.approx([VOCABULARY] * 8, rel=1e-6)
    assert (state.outcome, state.step, state.epoch, state.best_step) == ("epochs", 21, 3, 7)


def test_training_learns_and_best_is_the_lowest_valid_perplexity(tmp_path: Path) -> None:
    state = ToyTraining(replace(SHORT, epochs=12, average=0.9)).fit(tmp_path)
    valid = [line["valid_ppl"] for line in metrics(tmp_path) if line["valid_ppl"]]
    assert state.best == min(valid) < 0.8 * valid[0]
    fresh = ToyTraining(SHORT)
    fresh.model.load_state_dict(load_weights(tmp_path / BEST))
    fresh.model.eval()
    assert fresh.perplexity() == state.best


@pytest.mark.parametrize(
    ("changes", "outcome", "step"),
    [
        ({"max_steps": 5}, "steps", 5),
        ({"max_seconds": 1e-9}, "seconds", 1),
        ({"patience": 2, "eval_every": 3, "epochs": 0}, "patience", 9),
        ({"epochs": 2}, "epochs", 14),
    ],
)
def test_limits(tmp_path: Path, changes: dict, outcome: str, step: int) -> None:
    state = ToyTraining(replace(SHORT, **changes)).fit(tmp_path, evaluate=lambda: 5.0)
    assert (state.outcome, state.step) == (outcome, step)
    assert metrics(tmp_path)[-1]["valid_ppl"] == 5.0
    again = ToyTraining(replace(SHORT, **changes)).fit(tmp_path)
    assert (again.outcome, again.step, again.lines) == (outcome, step, state.lines)


def test_the_end_of_the_time_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trellis")
    ToyTraining(SHORT).fit(tmp_path / "whole")
    assert "time limit" not in caplog.text
    ToyTraining(replace(SHORT, max_seconds=1e-9)).fit(tmp_path / "stopped")
    assert "Training stopped at its time limit, at step 1 of " in caplog.text


def test_a_finished_training_can_be_prolonged(tmp_path: Path) -> None:
    ToyTraining(SHORT).fit(tmp_path / "long")
    ToyTraining(replace(SHORT, epochs=1)).fit(tmp_path / "short")
    ToyTraining(SHORT).fit(tmp_path / "short")
    assert_same_runs(tmp_path / "long", tmp_path / "short")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    ToyTraining(SHORT).fit(tmp_path / "whole")
    training = ToyTraining(SHORT)
    learn = training.learner.step

    def step_and_signal(batch):
        if training.learner.steps == 9:
            os.kill(os.getpid(), number)
        return learn(batch)

    training.learner.step = step_and_signal
    with caplog.at_level(logging.WARNING):
        state = training.fit(tmp_path / "stopped")
    assert (state.outcome, state.step) == ("interrupted", 10)
    assert f"Stopped by {number.name} at step 10" in caplog.text
    ToyTraining(SHORT).fit(tmp_path / "stopped")
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")


def test_a_second_signal_is_obeyed_at_once(tmp_path: Path) -> None:
    def interrupted_twice() -> float:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        ToyTraining(SHORT).fit(tmp_path, evaluate=interrupted_twice)


def test_fit_works_outside_the_main_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: ToyTraining(SHORT).fit(tmp_path))
    thread.start()
    thread.join()
    assert metrics(tmp_path)[-1]["step"] == 21


def spoil(training: ToyTraining, step: int, factor: float, offset: float = 0.0) -> None:
    """From a step on, multiply the gradient by `factor` and add `offset` to the log-likelihood."""
    loss = training.model.log_likelihood

    def spoiled(batch, state):
        log_likelihood, state = loss(batch, state)
        if training.learner.steps < step:
            return log_likelihood, state
        log_likelihood.register_hook(lambda gradient: gradient * factor)
        return log_likelihood + offset, state

    training.model.log_likelihood = spoiled


@pytest.mark.parametrize(
    ("factor", "offset", "reason"),
    [
        (1.0, math.nan, "loss or its gradient is nan"),
        (1.0, -math.inf, "loss or its gradient is"),
        (math.inf, 0.0, "loss or its gradient is nan"),
        (1.0, -1e4, r"loss rose from 3\.\d+ to \d+\.\d nats per token"),
    ],
    ids=["nan", "infinite", "gradient", "explosion"],
)
def test_a_broken_loss_stops_the_training(tmp_path: Path, factor: float, offset: float, reason: str) -> None:
    training = ToyTraining(SHORT)
    spoil(training, 9, factor, offset)
    with pytest.raises(TrellisError, match=rf"Between steps 9 and 12 .*{reason}.*last\.safetensors \(step 7\)"):
        training.fit(tmp_path)
    assert read_details(tmp_path / LAST)["state"]["step"] == 7
    assert all(value.isfinite().all() for value in load_weights(tmp_path / LAST).values())


def test_an_explosion_is_judged_by_the_lowest_loss(tmp_path: Path) -> None:
    """Two rises in a row, neither of which is one alone."""
    training = ToyTraining(SHORT)
    tokens = int(next(iter(toy_training.ToyBatches())).lengths.sum())
    for step in (8, 12):
        spoil(training, step, 1.0, -0.7 * SHORT.max_rise * tokens)
    with pytest.raises(TrellisError, match=r"Between steps 13 and 14 .*loss rose from 3\.\d+ to 10\.\d+ nats"):
        training.fit(tmp_path, evaluate=lambda: 1.0)


def test_a_broken_evaluation_stops_the_training(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="valid_ppl is nan; no checkpoint has been written yet"):
        ToyTraining(SHORT).fit(tmp_path, evaluate=lambda: math.nan)


def test_a_broken_state_is_never_saved(tmp_path: Path) -> None:
    training = ToyTraining(replace(SHORT, checkpoint_steps=1))
    spoil(training, 9, math.inf)
    with pytest.raises(TrellisError, match=r"\(step 9\)"):
        training.fit(tmp_path)
    assert all(value.isfinite().all() for value in load_weights(tmp_path / LAST).values())


def test_an_infinite_valid_perplexity_is_recorded(tmp_path: Path) -> None:
    state = ToyTraining(replace(SHORT, epochs=1)).fit(tmp_path, evaluate=lambda: math.inf)
    assert state.best == math.inf
    assert metrics(tmp_path)[-1]["valid_ppl"] == "inf"


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    ToyTraining(SHORT).fit(tmp_path, resume=False)
    with pytest.raises(TrellisError, match="already contains a training"):
        ToyTraining(SHORT).fit(tmp_path, resume=False)


def test_no_batches_is_an_error(tmp_path: Path) -> None:
    training = ToyTraining(SHORT)
    training.batches.pieces = training.batches.pieces[:0]
    with pytest.raises(TrellisError, match="Nothing to train on"):
        training.fit(tmp_path)


def test_a_step_that_does_not_fit_in_memory_is_an_error(tmp_path: Path) -> None:
    training = ToyTraining(SHORT)
    message = "CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 7.92 GiB of which 1 GiB"
    training.model.log_likelihood = mock.Mock(side_effect=torch.cuda.OutOfMemoryError(message))
    with pytest.raises(
        TrellisError, match=r"GPU, which has 7\.92 GiB \(the last request was for 3\.50 GiB\); use fewer"
    ):
        training.fit(tmp_path)


def test_a_damaged_checkpoint_names_the_other(tmp_path: Path) -> None:
    ToyTraining(SHORT).fit(tmp_path)
    last = tmp_path / LAST
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(TrellisError, match=r"last\.safetensors is truncated.*best\.safetensors \(step \d+\) is intact"):
        ToyTraining(SHORT).fit(tmp_path)
    last.write_bytes((tmp_path / BEST).read_bytes())
    assert ToyTraining(SHORT).fit(tmp_path).step == 21


def test_newer_and_foreign_files_are_errors(tmp_path: Path) -> None:
    save_tensors(tmp_path / LAST, {"a": torch.ones(1)}, {"format": "trellis.checkpoint", "schema": "3"})
    with pytest.raises(TrellisError, match="schema 3, from a newer Trellis"):
        ToyTraining(SHORT).fit(tmp_path)
    save_tensors(tmp_path / LAST, {"a": torch.ones(1)})
    with pytest.raises(TrellisError, match="not a Trellis checkpoint"):
        ToyTraining(SHORT).fit(tmp_path)


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path) -> None:
    ToyTraining(SHORT).fit(tmp_path)
    other = ToyTraining(SHORT)
    smaller = GradientModel()
    smaller.weight = torch.nn.Parameter(torch.zeros(2))
    other.learner = GradientLearner(smaller, SHORT)
    with pytest.raises(TrellisError, match="does not match this model"):
        other.fit(tmp_path)


def test_another_thread_count_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ToyTraining(replace(SHORT, epochs=1)).fit(tmp_path)
    torch.set_num_threads(2)
    ToyTraining(SHORT).fit(tmp_path)
    assert "was trained with 1 threads and resumes with 2" in caplog.text


def test_averaged_tied_weights_are_what_a_checkpoint_shows() -> None:
    model = Bigram()
    learner = GradientLearner(model, replace(SHORT, average=0.5))
    learner.step(next(iter(toy_training.ToyBatches())))
    tensors = learner.state_tensors()
    with learner.evaluated():
        shown = model.embed.clone()
    assert torch.equal(tensors["model.embed"], shown)
    assert torch.equal(tensors["model.output.weight"], shown)
    assert torch.equal(tensors["raw.embed"], model.embed)
    assert not torch.equal(shown, model.embed)
