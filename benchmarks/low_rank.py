"""Low-rank transitions: growth of time and memory with states, features and the width of a band; dense products."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.growth import exponent
from benchmarks.large_hmm import WINDOW, fresh_memory, peak_memory, text, timed, word_classes
from benchmarks.report import emit
from trellis.config import TrainConfig
from trellis.corpus import Vocabulary
from trellis.emissions import Partition
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.learning.gradient import GradientLearner
from trellis.transitions import Banded, Dense, LowRank, Transition
from trellis.types import Batch

BENCH = "low-rank"
LANES, STEPS = 64, 8  # parallel sequences, and steps of the forward pass
SIZES = {  # states, features of the growth in states, states of the growth in features, features
    "cpu": ([2**n for n in range(9, 14)], 64, 2048, [2**n for n in range(4, 10)]),
    "cuda": ([2**n for n in range(14, 21)], 1024, 65536, [2**n for n in range(7, 13)]),
}
BANDS = {  # states and widths of the growth in width, width and states of the growth in states
    "cpu": (2**12, [2**n for n in range(6, 11)], 256, [2**n for n in range(10, 15)]),
    "cuda": (2**16, [2**n for n in range(7, 11)], 512, [2**n for n in range(14, 19)]),
}
SAMPLED = {"cpu": (2**13, 256), "cuda": (2**16, 1024)}  # states and features of a chain to sample from
PATHS, LENGTH = 1024, 128
TRAINED = {0: [2**n for n in range(12, 17)], 256: [2**n for n in range(16, 21)]}  # states per class (0: none) -> states
LARGEST_DENSE = {"cpu": 2**12, "cuda": 2**16}
TAIL = {"cpu": (2**11, 2**13), "cuda": (2**15, 2**18)}  # the range over which a second exponent in states is fitted


def low_rank(states: int, features: int, device: torch.device) -> LowRank:
    """A random low-rank operator in the precision of training."""
    dtype = torch.bfloat16 if device.type == "cuda" else None
    into = torch.rand(states, features, device=device)
    out = torch.rand(states, features, device=device)
    return LowRank(into / into.sum(-1, keepdim=True), out / out.sum(0), dtype)


def banded(states: int, width: int, device: torch.device) -> Banded:
    """A random operator within a band."""
    probs = torch.rand(states, width, device=device)
    return Banded(probs / probs.sum(-1, keepdim=True))


class Low(Dense):
    """A dense operator with products in lower precision."""

    def forward(self, probs: torch.Tensor) -> torch.Tensor:
        return (probs.to(self.matrix.dtype) @ self.matrix).to(probs.dtype)


def dense(states: int, device: torch.device) -> Dense:
    matrix = torch.rand(states, states, device=device)
    return Low((matrix / matrix.sum(-1, keepdim=True)).to(torch.bfloat16 if device.type == "cuda" else torch.float32))


def passing(operator: Transition, device: torch.device) -> Callable[[], object]:
    """STEPS steps of the forward pass for LANES sequences, with emissions and normalisation."""
    beliefs = torch.full((LANES, operator.num_states), 1 / operator.num_states, device=device)
    likely = torch.rand(LANES, operator.num_states, device=device)

    def work() -> None:
        probs = beliefs
        with torch.no_grad():
            for _ in range(STEPS):
                probs = operator.forward(probs) * likely
                probs = probs / probs.sum(-1, keepdim=True)

    return work


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The work as one CUDA graph on a GPU, where launching small kernels would dominate."""
    if device.type == "cpu":
        return work
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def copy_rate(device: torch.device) -> float:
    """GB/s of a large copy, reading and writing."""
    source = torch.empty((1 << 28) if device.type == "cuda" else (1 << 24), device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / timed(lambda: target.copy_(source), 10, device) / 1e9


def grow(
    name: str, sizes: Sequence[int], problems: Sequence[tuple[int, int]], device: torch.device, repeats: int
) -> None:
    """Report seconds per token as one of the two sizes grows, and the exponent."""
    rate, seconds = copy_rate(device), []
    for states, features in problems:
        fresh_memory(device)
        operator = low_rank(states, features, device)
        seconds.append(timed(captured(passing(operator, device), device), repeats, device) / STEPS / LANES)
        width = 2 if operator.dtype is torch.bfloat16 else 4
        moved = (2 * states * features * width + 4 * LANES * states * 6) / LANES / seconds[-1] / 1e9
        emit(BENCH, f"{states} states, {features} features", "forward, a token", seconds[-1] * 1e6, "copy rate, GB/s",
             rate, moved / rate, "us", gigabytes_per_second=moved, memory_gb=peak_memory(device))  # fmt: skip
    first, last = TAIL[device.type] if name == "states" else (min(sizes), max(sizes))
    tail = [i for i, size in enumerate(sizes) if first <= size <= last]
    late = exponent([sizes[i] for i in tail], [seconds[i] for i in tail])
    emit(BENCH, f"growth in {name}", "exponent of time", exponent(sizes, seconds), "theory", 1.0, None, "", tail=late)


def grow_band(name: str, problems: Sequence[tuple[int, int]], device: torch.device, repeats: int) -> None:
    """Report the time of products with a band as its width or the number of states grows: on a CPU, that of the
    process alone, so that other programs matter less."""
    seconds, clock = [], time.process_time if device.type == "cpu" else time.perf_counter
    for states, width in problems:
        fresh_memory(device)
        work = captured(passing(banded(states, width, device), device), device)
        seconds.append(min(timed(work, 1, device, clock) for _ in range(repeats)) / STEPS / LANES)
        emit(BENCH, f"{states} states, a band of {width}", "forward, a token", seconds[-1] * 1e6, "none", None, None,
             "us", memory_gb=peak_memory(device))  # fmt: skip
    sizes = [width if name == "width" else states for states, width in problems]
    emit(BENCH, f"growth of a band in {name}", "exponent of time", exponent(sizes, seconds), "theory", 1.0, None, "",
         tail=exponent(sizes[-3:], seconds[-3:]))  # fmt: skip


def bands(largest: int, device: torch.device, repeats: int) -> None:
    wide, widths, width, long = BANDS[device.type]
    grow_band("width", [(min(wide, largest), size) for size in widths], device, repeats)
    grow_band("states", [(size, width) for size in long if size <= largest], device, repeats)


def against_dense(sizes: Sequence[int], features: int, device: torch.device, repeats: int) -> None:
    for states in sizes:
        if states > LARGEST_DENSE[device.type]:
            continue
        ours = timed(captured(passing(low_rank(states, features, device), device), device), repeats, device)
        fresh_memory(device)
        theirs = timed(captured(passing(dense(states, device), device), device), repeats, device)
        emit(BENCH, f"{states} states, {features} features", "forward", ours * 1e3, "dense product", theirs * 1e3,
             theirs / ours, "ms", flop_ratio=states / (2 * features))  # fmt: skip


def training_step(states: int, features: int, band: int, classes: int, device: torch.device) -> Callable[[], object]:
    """A training step of a low-rank HMM with word classes, or (0) with all states live at every token."""
    vocab = Vocabulary(["<eos>", "<unk>", *(f"w{n}" for n in range(9998))], [1] * 10_000)
    choices = HMMConfig(states=states, params="lowrank", features=features, band=band, init_std=0.05)
    support = Partition(word_classes(classes), [states // classes] * classes) if classes else None
    model = HMM.build(vocab, choices, True, 0, support).to(device)
    learner = GradientLearner(model, TrainConfig(learner="gradient", lr=1e-3), 1000)
    tokens, full = text(LANES, WINDOW), torch.full((LANES,), WINDOW)
    fresh = torch.zeros(LANES, dtype=torch.bool)
    learner.step(Batch(tokens, full, ~fresh, True, True))
    return lambda: learner.step(Batch(tokens, full, fresh, True, False))


def training(features: int, largest: int, device: torch.device, repeats: int) -> None:
    """Report the time of training steps, and how it grows with the states."""
    for each, sizes in TRAINED.items():
        seconds = []
        kept = [size for size in sizes if size <= largest]
        kind = f"{each} states a class" if each else "all states live"
        for size in kept:
            fresh_memory(device)
            step = training_step(size, features, 0, size // each if each else 0, device)
            seconds.append(timed(step, repeats, device))
            emit(BENCH, f"{size} states, {features} features, {kind}", "training step", seconds[-1] * 1e3, "none", None,
                 None, "ms", memory_gb=peak_memory(device), tokens_per_second=LANES * WINDOW / seconds[-1])  # fmt: skip
            del step
        if len(kept) > 1:
            emit(BENCH, f"training, {kind}", "exponent of time", exponent(kept, seconds), "theory", 1.0, None, "",
                 first=kept[0], last=kept[-1], tail=exponent(kept[-3:], seconds[-3:]))  # fmt: skip


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor created."""

    entries = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            self.entries = max(self.entries, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
        return made


def allocation(states: int, features: int, device: torch.device) -> None:
    """The largest tensor of a forward pass."""
    with Largest() as largest:
        passing(low_rank(states, features, device), device)()
    emit(BENCH, f"{states} states, {features} features", "largest tensor", float(largest.entries), "K^2",
         float(states**2), states**2 / largest.entries, "entries")  # fmt: skip


def sampling(states: int, features: int, device: torch.device) -> None:
    """Report the time of sampling with alias tables, including their construction, and by inversion."""
    operator, first = low_rank(states, features, device), torch.arange(PATHS, device=device)
    uniform = torch.rand(LENGTH, PATHS, dtype=torch.float64, device=device)

    def drawing(steps: int, tables: bool) -> Callable[[], object]:
        def work() -> None:
            chain, here = operator.for_draws(PATHS * steps if tables else 0), first
            for numbers in uniform[:steps]:
                here = chain.sample_next(here, numbers)

        return work

    ours = timed(drawing(LENGTH, True), 1, device) / LENGTH / PATHS
    theirs = timed(drawing(2, False), 1, device) / 2 / PATHS
    emit(BENCH, f"{states} states, {features} features, {PATHS * LENGTH} draws", "a draw", ours * 1e6, "inversion",
         theirs * 1e6, theirs / ours, "us")  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks low-rank", description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--largest", type=int, default=2**20, help="most states")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--training", action="store_true", help="only time training steps")
    parser.add_argument("--band", action="store_true", help="only time products with a band")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    states, features, fixed, ranks = SIZES[device.type]
    states = [size for size in states if size <= options.largest]
    if options.training:
        training(features, options.largest, device, options.repeats)
        return
    if options.band:
        bands(options.largest, device, options.repeats)
        return
    grow("states", states, [(size, features) for size in states], device, options.repeats)
    grow("features", ranks, [(min(fixed, options.largest), rank) for rank in ranks], device, options.repeats)
    bands(options.largest, device, options.repeats)
    against_dense(states, features, device, options.repeats)
    allocation(states[-1], features, device)
    sampling(*SAMPLED[device.type], device)
    if device.type == "cuda":
        training(features, options.largest, device, options.repeats)
