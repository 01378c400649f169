"""Run as a program by test_forking.py: queries in forked processes of a process that has used torch's threads.

Prints one line per case; a child that does not end within LIMIT seconds is killed and counts as hanging."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import trellis
from trellis.progress import set_quiet
from trellis.registry import FAMILIES
from trellis.testing.families import SENTENCES, TAGS

LIMIT = 60.0
SMALL: dict[str, dict[str, Any]] = {
    "hmm": {"states": 4, "epochs": 2},
    "hmm-tagger": {"states": 4, "epochs": 2},
    "fhmm": {"layers": 2, "states": 3, "epochs": 2},
    "lds": {"dim": 3},
    "feedforward": {"dim": 4, "epochs": 1},
    "lstm": {"dim": 4, "epochs": 1},
    "rnn": {"dim": 4, "epochs": 1},
}
TAGGERS = "crf", "hmm-tagger"
MANY = SENTENCES * 20


def wake() -> float:
    """An operation that torch shares among its threads."""
    return float(torch.ones(1 << 20).exp().sum())


def query(family: str) -> Callable[[], Any]:
    """A query of a small model of the family."""
    tagged = [[(word, TAGS.get(word, "V")) for word in line.split()] for line in SENTENCES]
    data = tagged if family in TAGGERS else SENTENCES
    model = trellis.train(data, family=family, device="cpu", **SMALL.get(family, {})).model
    if family in TAGGERS:
        return lambda: model.tag([line.split() for line in MANY])
    if family == "lds":
        return lambda: [float(np.abs(rows).sum()) for rows in model.embed(MANY)]
    return lambda: model.log_prob(MANY).tolist()


def in_child(work: Callable[[], Any]) -> Any:
    """The result of a function in a forked process; "hangs" if it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        result = pickle.dumps((work(), wake(), torch.get_num_threads()))
        os.write(writer, result[: 1 << 16])
        os._exit(0)
    end = time.monotonic() + LIMIT
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.01)
    return pickle.loads(os.read(reader, 1 << 16))


class Queries(Dataset[Any]):
    """A data set whose items are results of a query."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return float(np.sum(self.work()))


def main() -> None:
    set_quiet()
    torch.set_num_threads(2)
    for family in sys.argv[1:] or FAMILIES:
        work = query(family)
        here = work(), wake(), 1
        print(family, "equal" if in_child(work) == here else "different", flush=True)
    model = trellis.train(SENTENCES, family="hmm", device="cpu", **SMALL["hmm"]).model
    here = float(np.sum(model.log_prob(MANY)))
    items = [float(item) for item in DataLoader(Queries(lambda: model.log_prob(MANY)), num_workers=2)]
    print("DataLoader", "equal" if items == [here] * 2 else items, flush=True)
    for backend in ("loky", "multiprocessing", "threading"):
        found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(model.log_prob)(MANY) for _ in range(2))
        print(backend, "equal" if np.allclose([np.sum(one) for one in found], here) else found, flush=True)


if __name__ == "__main__":
    main()
