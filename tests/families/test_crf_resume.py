"""A CRF tagger that was killed ends with the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import trellis
from trellis.errors import TrellisError
from trellis.families.crf import tagger as module
from trellis.families.crf.learning import Checkpoints
from trellis.families.crf.tagger import CRFTagger
from trellis.models.files import LAST
from trellis.storage import PARTIAL, load_tensors

WORDS = {"D": ["the", "a"], "N": ["cat", "dog", "bird", "run"], "V": ["sees", "hears", "run"], "J": ["old", "cat"]}
PATTERNS = ["DNV", "DNVDN", "DJNV", "NVN", "JNVDJN"]
OPTIONS: dict[str, Any] = {"family": "crf", "checkpoint_seconds": 1e-9, "tolerance": 0.0, "device": "cpu"}
LEARNERS = {"lbfgs": {"iterations": 25, "l2": 0.1}, "adagrad": {"learner": "adagrad", "iterations": 6, "batch": 8}}


def text(size: int = 40) -> list[list[tuple[str, str]]]:
    rows = [PATTERNS[i % 5] for i in range(size)]
    return [[(WORDS[t][(3 * i + j) % len(WORDS[t])], t) for j, t in enumerate(row)] for i, row in enumerate(rows)]


class KilledError(Exception):
    pass


def train_until(count: int, run: Path, options: dict[str, Any]) -> None:
    """Train until the checkpoint of this number has been written."""
    write, written = Checkpoints.offer, 0

    def offer(self: Checkpoints, state: Any) -> None:
        nonlocal written
        write(self, state)
        written += 1
        if written == count:
            raise KilledError

    with patch.object(Checkpoints, "offer", offer), pytest.raises(KilledError):
        trellis.train(text(), run=run, **options)


def same(one: Any, other: Any) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("learner", LEARNERS)
def test_stopped_and_resumed(learner: str, tmp_path: Path) -> None:
    options = OPTIONS | LEARNERS[learner]
    whole = trellis.train(text(), run=tmp_path / "whole", **options).model
    assert same(trellis.train(text(), **options).model, whole)  # checkpoints change nothing
    for count in (1, 2, 5):
        run = tmp_path / f"stopped-{count}"
        train_until(count, run, options)
        assert trellis.load(run).tag([["the", "dog"]])  # the model so far
        with pytest.raises(TrellisError, match="already contains"):
            trellis.train(text(), run=run, **options)
        assert same(trellis.train(text(), run=run, resume=True, **options).model, whole)
        assert same(trellis.load(run), whole)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OPTIONS | LEARNERS["lbfgs"]
    whole = trellis.train(text(), run=tmp_path / "run", **options)
    monkeypatch.setattr(module, "train_crf", None)
    again = trellis.train(text(), run=tmp_path / "run", resume=True, **options)
    assert same(again.model, whole.model)
    assert again.training == whole.training


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_checkpoint_of_another_text(learner: str, tmp_path: Path) -> None:
    options = OPTIONS | LEARNERS[learner]
    train_until(2, tmp_path / "run", options)
    other = [[("quite", "D"), ("different", "J")]] * 9
    trellis.train(other, run=tmp_path / "other", **options)
    (tmp_path / "run" / LAST).replace(tmp_path / "other" / LAST)
    (tmp_path / "other" / "model.safetensors").unlink()
    with pytest.raises(TrellisError, match="does not match the text"):
        trellis.train(other, run=tmp_path / "other", resume=True, **options)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    options = OPTIONS | LEARNERS["lbfgs"]
    train_until(2, tmp_path / "run", options)
    data = (tmp_path / "run" / LAST).read_bytes()
    (tmp_path / "run" / LAST).write_bytes(data[:-3] + b"abc")
    with pytest.raises(TrellisError, match="checksum mismatch"):
        trellis.train(text(), run=tmp_path / "run", resume=True, **options)


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
import trellis
from test_crf_resume import LEARNERS, OPTIONS, text
from trellis import storage
sync, count = storage._sync_file, 0
def killed(path):
    global count
    sync(path)
    count += path.name.startswith(".last")
    if count == 4:
        os.kill(os.getpid(), signal.SIGKILL)
storage._sync_file = killed
trellis.train(text(), run=sys.argv[3], **OPTIONS, **LEARNERS["lbfgs"])
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    run, folders = tmp_path / "run", [str(Path(trellis.__file__).parents[1]), str(Path(__file__).parent)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    ended = subprocess.run([sys.executable, "-c", KILLED, *folders, str(run)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(run.glob(f".*{PARTIAL}"))) == 1
    assert any(name.startswith("training.") for name in load_tensors(run / LAST))
    options = OPTIONS | LEARNERS["lbfgs"]
    resumed = trellis.train(text(), run=run, resume=True, **options).model
    assert same(resumed, trellis.train(text(), **options).model)
    assert not list(run.glob(f".*{PARTIAL}"))
    assert isinstance(resumed, CRFTagger)


@pytest.mark.parametrize("family", ["bigram", "crf", "hmm"])
def test_unfinished_files_are_removed_in_every_family(family: str, tmp_path: Path) -> None:
    (tmp_path / "run" / "inner").mkdir(parents=True)
    left = [tmp_path / "run" / f".x.{PARTIAL}", tmp_path / "run" / "inner" / f".model.safetensors.1{PARTIAL}"]
    for path in left:
        path.write_text("half")
    data: Any = text() if family == "crf" else [" ".join(word for word, _ in row) for row in text()]
    trellis.train(data, family=family, run=tmp_path / "run", **({"states": 2, "epochs": 1} if family == "hmm" else {}))
    assert not any(path.exists() for path in left)
