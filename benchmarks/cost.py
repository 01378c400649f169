"""The cost of training on several GPUs, predicted from measured steps: time per step, hours and euros."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch

from benchmarks.large_hmm import LANES, fresh_memory, learner_of, peak_memory, steps_of, timed
from benchmarks.report import emit

BENCH = "cost"
MEASURED = {32_768: 1.906e-3, 65_536: 4.499e-3}  # seconds per step on one H200, half of the states kept (benchmarks.md)
EARLIER = {131_072: 18.3e-3, 262_144: 65.7e-3}  # ... measured before the step became faster
OPTIMISER = 0.17e-3 / 65_536  # seconds per state, measured with 65,536
TOKENS = 64 * 32  # per GPU and step
DIM, WORDS = 256, 10_000
NVLINK, NETWORK = 450e9, 50e9  # inputs, bytes per second and direction: NVLink 4 within 8 GPUs, one 400 Gb/s port each
LATENCY = 30e-6  # input, seconds of a collective per doubling of the GPUs
NODE = 8  # GPUs that share NVLink
TEXTS = {"text8": 17_005_207, "WikiText-103": 103_227_021, "a billion words": 1_000_000_000}  # tokens of an epoch
SIZES = {65_536: 32_768, 1_048_576: 65_536}  # states of the model: states kept by dropout
GPUS = 1, 2, 4, 8, 16, 32, 64
RUNS = (  # measured here: states of the model, states kept, word classes
    (1_048_576, 65_536, 256), (131_072, 65_536, 256), (65_536, 32_768, 256), (32_768, 16_384, 128),
    (1_048_576, 32_768, 256),
)  # fmt: skip
QUICK_RUNS = ((512, 256, 4), (2048, 512, 4))


class Cost(NamedTuple):
    """Seconds of a step: t = fixed + square S^2, with S states kept."""

    fixed: float
    square: float

    @classmethod
    def fitted(cls) -> Cost:
        """The line through the two measured steps."""
        (small, fast), (large, slow) = ((states / 2, seconds) for states, seconds in MEASURED.items())
        square = (slow - fast) / (large**2 - small**2)
        return cls(fast - square * small**2, square)

    def compute(self, kept: int, states: int, gpus: int) -> float:
        """Seconds of the arithmetic of a step. Normalisers are shared out; the optimiser, which runs over all states,
        is not, and the fitted steps contain it for twice the states kept."""
        more = OPTIMISER * max(0, states - 2 * kept)
        return self.fixed + self.square * kept**2 / gpus + more


def parameters(states: int) -> int:
    """Two tables of half the dimensions per state, and the embeddings of words."""
    return 2 * states * DIM // 2 + WORDS * DIM


def communication(kept: int, states: int, gpus: int) -> float:
    """Seconds to sum the gradients, and the normalisers and their gradients, by ring."""
    if gpus == 1:
        return 0.0
    size = 4 * (parameters(states) + 2 * kept)
    rate = NVLINK if gpus <= NODE else NETWORK
    return 2 * (gpus - 1) / gpus * size / rate + 3 * LATENCY * (gpus - 1).bit_length()


def measure(states: int, kept: int, classes: int, device: torch.device, repeats: int) -> None:
    """The time of a step and of the optimiser alone, and the peak memory, beside the predictions."""
    case, before = f"{states:,} states, {kept:,} kept, {classes} classes", fresh_memory(device)
    learner = learner_of(states, classes, device, 1 - kept / states)
    seconds = timed(steps_of(learner, LANES if device.type == "cuda" else 2), repeats, device)
    found, memory = Cost.fitted().compute(kept, states, 1), peak_memory(device, before)
    emit(BENCH, case, "step", 1e3 * seconds, "predicted", 1e3 * found, found / seconds, "ms", memory_gb=memory)
    alone = timed(lambda: learner.optimizer.update(learner.max_norm, learner.average), repeats, device)
    found = OPTIMISER * states
    emit(BENCH, case, "optimiser", 1e3 * alone, "predicted", 1e3 * found, found / alone, "ms")


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
        for run in QUICK_RUNS if chosen.quick else RUNS:
            measure(*run, device, chosen.repeats)
        return
    for states, seconds in (MEASURED | EARLIER).items():
        found = cost.compute(states // 2, states, 1)
        emit(
            BENCH, f"{states:,} states", "predicted step", 1e3 * found, "measured", 1e3 * seconds, found / seconds, "ms"
        )
    for states, kept in SIZES.items():
        for gpus in GPUS:
            step = cost.compute(kept, states, gpus) + communication(kept, states, gpus)
            hours = {text: tokens / (TOKENS * gpus) * step / 3600 for text, tokens in TEXTS.items()}
            more = {"predicted": (states, gpus) != (65_536, 1), "hours": hours}
            more |= {"euros": {text: hour * gpus * price for text, hour in hours.items()}}
            name = f"{states:,} states, {gpus} GPUs"
            alone = cost.compute(kept, states, 1)
            emit(BENCH, name, "step", 1e3 * step, "one GPU", 1e3 * alone, alone / step, "ms", **more)


if __name__ == "__main__":
    main([])
