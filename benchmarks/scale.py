"""Training in several processes under torchrun: time and bytes per step, against one process of one thread."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.cost import summed, wire
from benchmarks.report import emit

BENCH = "scale"
WORDS, LANES, WINDOW = 10_000, 128, 64
WARM_UP, STEPS, QUICK = 3, 12, 4
NEURAL = {
    "learner": "gradient", "params": "neural", "emission": "brown", "dropout": "state", "dropout_rate": 0.5,
    "factored": True, "tying": "but-out",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "em, 256 states": {"states": 256, "learner": "em"},
    "stepwise em, 256 states": {"states": 256, "learner": "stepwise-em"},
    "neural, 4,096 states": NEURAL | {"states": 4096, "classes": 64, "dim": 128},
    "neural, 16,384 states": NEURAL | {"states": 16384, "classes": 256, "dim": 256},
}  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks scale", description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2], help="numbers of processes besides 1")
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens of each lane in a step")
    chosen = parser.parse_args(argv)
    job = {"steps": QUICK if chosen.quick else STEPS, "window": chosen.window}
    for case in chosen.cases:
        alone = measured(job | {"case": case}, 1)
        for size in chosen.processes:
            several = measured(job | {"case": case}, size)
            for metric in ("seconds", "cpu_seconds"):
                efficiency = alone[metric] / several[metric] / (size if metric == "seconds" else 1)
                more = {
                    "processes": size,
                    "efficiency": efficiency,
                    "load": os.getloadavg()[0],
                    "window": chosen.window,
                }
                emit(BENCH, case, metric, several[metric], "one process", alone[metric], efficiency, "s/step", **more)
            for peer, bytes in peers_of(case, several["model_bytes"]).items():
                more = {"processes": size, "sent_by_ring": wire(several["bytes"], size)}
                emit(
                    BENCH, case, "summed", several["bytes"], peer, bytes, bytes / several["bytes"], "bytes/step", **more
                )


def peers_of(case: str, model: float) -> dict[str, float]:
    """Bytes with which those of a step are compared: all parameters, and the prediction of the cost model."""
    given = CASES[case]
    predicted = {"cost model": summed(given["states"] // 2, given["dim"])} if "dim" in given else {}
    return {"all parameters": model} | predicted


def measured(job: dict[str, Any], size: int) -> dict[str, float]:
    """Figures of a training step, from processes of one thread each."""
    torchrun = f"torch.distributed.run --standalone --nproc-per-node={size} -m benchmarks.scale"
    command = [sys.executable, "-m", *torchrun.split(), json.dumps(job)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def worker(job: dict[str, Any]) -> None:
    """Train on random words, and print the figures of the median step."""
    import torch

    from trellis import distributed
    from trellis.config import with_settings
    from trellis.corpus import Corpus, Split, Streams, Vocabulary
    from trellis.registry import resolve

    distributed.join()
    torch.set_num_threads(1)
    random, words = np.random.default_rng(0), np.arange(WORDS)
    length = LANES * job["window"] * (WARM_UP + job["steps"] + 1)
    tokens = random.choice(words, length, p=(weights := 1 / (words + 5.0)) / weights.sum()).astype(np.int32)
    split = Split(tokens, np.array([0, length]), np.array([0, length]))
    counts = np.bincount(tokens, minlength=WORDS).tolist()
    vocab = Vocabulary(["<eos>", "<unk>", *(f"w{n}" for n in range(2, WORDS))], counts)
    config = with_settings("hmm", {"device": "cpu", "order": "streams"} | CASES[job["case"]])
    torch.manual_seed(0)
    model = config.family.load("build")(config, Corpus(vocab, {"train": split}, ""))
    batches = Streams(split, LANES, job["window"]).share()
    learner = resolve(config.family.learners[config.train.learner])(model, config.train, len(batches))
    found = [figures(learner, batch) for batch in batches][WARM_UP:]
    seconds, cpu, sent = np.median(found, 0).tolist()
    cpu = sum(distributed.from_all(cpu))
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if distributed.is_first():
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "bytes": sent, "model_bytes": size}))


def figures(learner: Any, batch: Any) -> tuple[float, float, int]:
    """Seconds, seconds of the processor, and bytes of a step."""
    from trellis import distributed

    before = time.perf_counter(), time.process_time(), distributed.bytes_sent()
    learner.step(batch)
    after = time.perf_counter(), time.process_time(), distributed.bytes_sent()
    return tuple(b - a for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


if __name__ == "__main__":
    worker(json.loads(sys.argv[1]))
