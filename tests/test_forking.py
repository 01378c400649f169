"""Models keep working in forked processes, in which torch's threads do not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trellis
from trellis.devices import Forked, choose_device, usable
from trellis.errors import TrellisError
from trellis.kernels import team
from trellis.registry import FAMILIES

PROGRAM = Path(__file__).parent / "forking.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_every_family_in_a_forked_process() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cases = [*FAMILIES, "DataLoader", "loky", "multiprocessing", "threading"]
    assert done.stdout.splitlines() == [f"{case} equal" for case in cases]


def test_a_gpu_in_a_forked_process_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert usable(torch.device("cuda")) == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(Forked, "used_gpu", False)
    monkeypatch.setattr(Forked, "lost_gpu", False)
    Forked.before()
    assert choose_device("auto") == "cuda"  # the parent process keeps its GPU
    Forked.after()
    assert choose_device("auto") == choose_device("cpu") == "cpu"
    assert usable(torch.device("cpu")) == torch.device("cpu")
    for use in (lambda: choose_device("cuda"), lambda: usable(torch.device("cuda", 0))):
        with pytest.raises(TrellisError, match=r"^This process was forked .* \"spawn\".*\.$"):
            use()


def test_a_model_on_a_gpu_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trellis.train(["a b", "b a"] * 20, family="lstm", dim=2, epochs=1, device="cpu").model
    monkeypatch.setattr(Forked, "lost_gpu", True)
    model.log_prob("a b")
    monkeypatch.setattr(model, "embedding", torch.nn.Parameter(torch.empty(2, 2, device="meta")))
    monkeypatch.setattr("trellis.families.neural.base.usable", lambda device: usable(torch.device("cuda")))
    with pytest.raises(TrellisError, match="forked"):
        model.log_prob("a b")


def test_a_fork_releases_what_threads_held(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(team.OneBlasThread, "lock", team.threading.Lock())
    monkeypatch.setattr(team.OneBlasThread, "inside", 3)
    team.OneBlasThread.lock.acquire()
    try:
        team._after_fork()
        assert team.size(100) == torch.get_num_threads() == 1
        assert not team.OneBlasThread.lock.locked()
        assert team.OneBlasThread.inside == 0
    finally:
        torch.set_num_threads(threads)
