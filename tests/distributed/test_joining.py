"""Who takes part in a job, and how its processes wait for the one that works for them."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import environment, free_port, together
from test_together import CASES, SHORT, TEXT

import trellis
from trellis import distributed
from trellis.cli.commands import train as command
from trellis.cli.main import main
from trellis.corpus import brown
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.storage import atomic_write

OPTIONS = {"states": 2, "learner": "em", "order": "sentences", "epochs": 1, "device": "cpu", "ngram": 0}


def test_a_program_with_its_own_process_group_is_left_alone_until_it_joins() -> None:
    def own_job() -> dict[str, Any]:
        dist.init_process_group("gloo")
        number = dist.get_rank()
        seen: dict[str, Any] = {"before": (distributed.size(), distributed.is_joined(), distributed.is_first())}
        text = TEXT[: 40 + 20 * number]  # of different lengths: any message to the other process would be out of step
        seen["tokens"] = trellis.train(text, **OPTIONS).training["tokens"]
        distributed.join()
        seen["after"] = distributed.size(), distributed.is_joined(), distributed.is_first()
        waiting = dist.all_reduce(mine := torch.ones(3), async_op=True)
        seen["ours"] = float(distributed.add_up(torch.ones(())))
        waiting.wait()
        seen["theirs"] = mine.tolist()
        distributed.join()
        seen["together"] = trellis.train(TEXT, **OPTIONS).training["tokens"]
        return seen

    alone = [trellis.train(TEXT[:n], **OPTIONS).training["tokens"] for n in (40, 60, len(TEXT))]
    for number, seen in enumerate(together(2, own_job, joined=False)):
        assert not isinstance(seen, BaseException), repr(seen)
        assert seen["before"] == (1, False, True)
        assert seen["tokens"] == alone[number]
        assert seen["after"] == (2, True, number == 0)
        assert (seen["ours"], seen["theirs"]) == (2.0, [2.0] * 3)
        assert seen["together"] == alone[2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT: "),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}, "RANK and WORLD_SIZE are set without MASTER_PORT: "),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
    ],
)
def test_an_incomplete_job_is_one_sentence(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["trellis", "info", "demo"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trellis: {message}")
    assert error.count("\n") == 1
    assert (Job.rank, Job.size) == (0, 1)


def test_a_job_of_one_process_needs_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(Job, "rank", 0)
    distributed.declare()
    assert distributed.size() == 1


def in_turns(work: Callable[[], Any]) -> Any:
    with distributed.one_at_a_time():
        return work()


STEP = """
import sys, torch, trellis.distributed
from pathlib import Path

trellis.distributed.join()
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
torch.optim.AdamW([weight]).step()  # loads modules that would keep the connection
sys.modules["trellis.distributed.job"].disconnect()
for task in Path("/proc/self/task").iterdir():
    print((task / "comm").read_text().strip())
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_no_thread_outlives_the_connection() -> None:
    port = free_port()
    places = [os.environ | environment(rank, 2, port) | {"CUDA_VISIBLE_DEVICES": ""} for rank in range(2)]
    jobs = [subprocess.Popen([sys.executable, "-c", STEP], env=env, stdout=subprocess.PIPE) for env in places]
    for job in jobs:
        out, _ = job.communicate(timeout=180)
        assert job.returncode == 0
        assert b"python" in out
        assert b"gloo" not in out


def test_the_first_process_works_while_the_others_wait(tmp_path: Path) -> None:
    """Its work takes longer than the others would wait for a message, and turns can be repeated."""

    def read_or_make(name: str) -> str:
        path = tmp_path / name
        if path.exists():
            return "read"
        time.sleep(1.5)
        with atomic_write(path) as file:
            file.write(b"made")
        return "made"

    found = together(3, lambda: [in_turns(lambda n=n: read_or_make(n)) for n in ("one", "two")], seconds=1.0)
    assert sorted(found) == [["made"] * 2, ["read"] * 2, ["read"] * 2]


def test_a_failure_of_the_first_process_is_that_of_all(tmp_path: Path) -> None:
    def fail() -> None:
        (tmp_path / str(os.getpid())).touch()
        raise TrellisError("The text is too short.")

    def fail_twice() -> list[str]:
        sentences = []
        for _ in range(2):
            try:
                in_turns(fail)
            except TrellisError as error:
                sentences.append(str(error))
        return sentences

    assert together(2, fail_twice, seconds=5.0) == [["The text is too short."] * 2] * 2
    assert len(list(tmp_path.iterdir())) == 1


def test_a_dead_or_broken_first_process_ends_the_others_with_a_sentence() -> None:
    def break_down() -> None:
        in_turns(lambda: 1 / 0)

    broken, waiting = together(2, break_down, seconds=5.0)
    assert isinstance(broken, ZeroDivisionError)
    assert "Another process of this job has ended" in str(waiting)

    def hang() -> None:
        if distributed.is_first():
            time.sleep(3.5)  # before its turn: it shows no sign of life
        else:
            in_turns(int)

    _, late = together(2, hang, seconds=1.0)
    assert isinstance(late, TrellisError)
    assert "did not answer for 1 seconds" in str(late)


def test_word_classes_are_computed_once() -> None:
    def train() -> tuple[int, list[int]]:
        calls, cluster = [], brown.brown_clusters
        brown.brown_clusters = lambda *args, **more: calls.append(1) or cluster(*args, **more)
        options = SHORT | CASES["neural, state dropout"] | {"epochs": 1}
        model = trellis.train(TEXT[1:], **options).model  # no other test has cached the classes of this text
        return len(calls), model.params.partition.word_class.tolist()

    (first, classes), (second, others) = together(2, train)
    assert (first, second) == (1, 0)
    assert classes == others


def test_torchrun_passes_every_option_of_train_on() -> None:
    """torchrun's parser stops at an option of the command that is an abbreviation of two of its own."""
    from torch.distributed.run import get_args_parser

    parser = argparse.ArgumentParser()
    command.arguments(parser)
    options = {name for action in parser._actions for name in action.option_strings} - {"--help", "-h"}
    assert "-o" in options
    for name in options - {"--run"}:
        given = ["trellis", "train", "run.toml", name, "value"]
        found = get_args_parser().parse_args(shlex.split("--standalone --nproc-per-node=2 -m") + given)
        assert [found.training_script, *found.training_script_args] == given
