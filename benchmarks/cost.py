"""The cost of training on several GPUs, predicted from measured steps: time per step, hours and euros."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.large_hmm import LANES, fresh_memory, learner_of, peak_memory, steps_of, timed
from benchmarks.report import emit
from trellis.families.hmm.model import FEW
from trellis.transitions import stripes

BENCH = "cost"
TOKENS = 64 * 32  # per GPU and step
DIM, WORDS = 256, 10_000
NVLINK, NETWORK = 370e9, 47e9  # inputs, bytes per second and GPU: NVLink 4 within a machine, one 400 Gb/s port each
LATENCY = 30e-6  # input, seconds of a sum per doubling of the GPUs
NORM = 0.1  # share of the optimiser that limits the norm of the gradient: 1 of 10 passes over a table
NODE = 8  # GPUs that share NVLink
TEXTS = {"text8": 17_005_207, "WikiText-103": 103_227_021, "a billion words": 1_000_000_000}  # tokens of an epoch
GPUS = 1, 2, 4, 8, 16, 32, 64


class Run(NamedTuple):
    """A model with Brown classes."""

    states: int
    kept: int  # of the states, by dropout
    classes: int

    @property
    def name(self) -> str:
        return f"{self.states:,} states, {self.kept:,} kept, {self.classes} classes"

    @property
    def divided(self) -> bool:
        """Whether the embedding tables are divided among the GPUs."""
        return stripes.FEWEST <= self.kept <= FEW * self.states


SIZES = Run(65_536, 32_768, 256), Run(1_048_576, 65_536, 256)
LARGEST = Run(16_777_216, 65_536, 256)  # never measured: only to compare ways of dividing tables
FITTED = {Run(32_768, 16_384, 128): (1.906e-3, 0.253e-3), Run(65_536, 32_768, 256): (4.507e-3, 0.263e-3)}
CHECKED = {  # seconds of a step and of its optimiser, here and above; on one H200 with 2,048 tokens, 2026-11-19
    Run(131_072, 65_536, 256): (18.21e-3, 0.412e-3), Run(1_048_576, 32_768, 256): (7.556e-3, 2.710e-3),
    Run(1_048_576, 65_536, 256): (21.13e-3, 2.714e-3),
}  # fmt: skip
OPTIMISER = 0.083e-3, 2.51e-9  # seconds, and seconds per state: the line through 131,072 and 1,048,576 states
QUICK_RUNS = Run(512, 256, 4), Run(2048, 512, 4)


def optimiser(states: int, gpus: int = 1) -> float:
    """Seconds of the optimiser, which runs over all states, or over those of one GPU."""
    return OPTIMISER[0] + OPTIMISER[1] * states * (NORM + (1 - NORM) / gpus)


class Cost(NamedTuple):
    """Seconds of a step without its optimiser: t = square S^2 + block n^2, with S states kept, n of them per class."""

    square: float
    block: float

    @classmethod
    def fitted(cls) -> Cost:
        """The solution for the two fitted steps."""
        rows = [[run.kept**2, (run.kept / run.classes) ** 2] for run in FITTED]
        return cls(*np.linalg.solve(rows, [step - after for step, after in FITTED.values()]).tolist())

    def compute(self, run: Run, gpus: int = 1) -> float:
        """Seconds of a step without its optimiser and sums. Row normalisers are divided among the GPUs; the blocks of
        each GPU's own tokens are not."""
        return self.square * run.kept**2 / gpus + self.block * (run.kept / run.classes) ** 2

    def step(self, run: Run, gpus: int = 1) -> float:
        """Seconds of a step."""
        return self.ways(run, gpus)["own rows" if run.divided else "not divided"]

    def ways(self, run: Run, gpus: int) -> dict[str, float]:
        """Seconds of a step, by the way in which embedding tables are divided among the GPUs.

        With `own rows`, a GPU updates its rows, and fetches those that this step or the step before has kept. With
        torch's ZeroRedundancyOptimizer, it gathers all rows (half of a sum); with FSDP, it also sends the gradients of
        all rows."""
        rows, table = 4 * run.kept * DIM, 4 * run.states * DIM
        whole, part, computed = optimiser(run.states), optimiser(run.states, gpus), self.compute(run, gpus)
        sent, latency = summing(summed(run.kept), gpus), LATENCY * (gpus - 1).bit_length()
        return {
            "not divided": computed + whole + sent + 3 * latency,
            "own rows": computed + part + sent + summing(2 * rows, gpus) + 4 * latency,
            "ZeroRedundancyOptimizer": computed + part + sent + summing(table, gpus) / 2 + 4 * latency,
            "FSDP": computed + part + sent + summing(table - rows, gpus) + 4 * latency,
        }


def summed(kept: int, dim: int = DIM) -> int:
    """Bytes of the sums of a step: the gradients of the embeddings of kept states and of words; the normalisers and
    their gradients."""
    return 4 * (kept * dim + WORDS * dim + 2 * kept)


def wire(size: float, processes: int) -> float:
    """Bytes that each process sends to sum `size` bytes by ring."""
    return 2 * (processes - 1) / processes * size


def summing(size: float, gpus: int) -> float:
    """Seconds in which `size` bytes are summed over the GPUs of each machine; each GPU then sums its share of them with
    the other machines."""
    inside, machines = min(gpus, NODE), -(-gpus // NODE)
    return wire(size, inside) / NVLINK + wire(size / inside, machines) / NETWORK


def measure(run: Run, device: torch.device, repeats: int) -> None:
    """The time of a step and of the optimiser alone, and the peak memory, beside the predictions."""
    before = fresh_memory(device)
    learner = learner_of(run.states, run.classes, device, 1 - run.kept / run.states)
    seconds = timed(steps_of(learner, LANES if device.type == "cuda" else 2), repeats, device)
    found, memory = Cost.fitted().step(run), peak_memory(device, before)
    emit(BENCH, run.name, "step", 1e3 * seconds, "predicted", 1e3 * found, found / seconds, "ms", memory_gb=memory)
    alone = timed(lambda: learner.optimizer.update(learner.max_norm, learner.average), repeats, device)
    found = optimiser(run.states)
    emit(BENCH, run.name, "optimiser", 1e3 * alone, "predicted", 1e3 * found, found / alone, "ms")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser("benchmarks cost", description=__doc__)
    parser.add_argument("--euros", type=float, default=3.0, help="price of a GPU for an hour")
    parser.add_argument("--measure", action="store_true", help="only measure steps on this machine's GPU")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="measure small models")
    chosen = parser.parse_args(argv)
    price, cost = chosen.euros, Cost.fitted()
    if chosen.measure:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for run in QUICK_RUNS if chosen.quick else FITTED | CHECKED:
            measure(run, device, chosen.repeats)
        return
    for run, (seconds, _) in (FITTED | CHECKED).items():
        found = cost.step(run)
        emit(BENCH, run.name, "predicted step", 1e3 * found, "measured", 1e3 * seconds, found / seconds, "ms")
    for run in SIZES:
        measured, alone = (FITTED | CHECKED)[run][0], cost.step(run)
        for gpus in GPUS:
            step = measured if gpus == 1 else cost.step(run, gpus)
            hours = {text: tokens / (TOKENS * gpus) * step / 3600 for text, tokens in TEXTS.items()}
            more = {"predicted": gpus > 1, "hours": hours}
            more |= {"euros": {text: hour * gpus * price for text, hour in hours.items()}}
            name = f"{run.states:,} states, {gpus} GPUs"
            emit(BENCH, name, "step", 1e3 * step, "one GPU, predicted", 1e3 * alone, alone / step, "ms", **more)
    for run in (SIZES[1], LARGEST):
        for gpus in (NODE, GPUS[-1]):
            name, (ours, *others) = f"{run.states:,} states, {gpus} GPUs", cost.ways(run, gpus).items()
            for way, seconds in others:
                emit(BENCH, name, ours[0], 1e3 * ours[1], way, 1e3 * seconds, seconds / ours[1], "ms")


if __name__ == "__main__":
    main([])
