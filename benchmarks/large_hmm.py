"""Training steps of very large HMMs: time, memory and their growth, against the published method."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.growth import exponent
from benchmarks.published import Published
from benchmarks.report import emit
from trellis.config import TrainConfig
from trellis.corpus import Vocabulary
from trellis.emissions import Categorical, Partition
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.inference import discrete
from trellis.kernels.lse import row_logsumexp
from trellis.learning.gradient import GradientLearner
from trellis.transitions import Softmax
from trellis.types import Batch, Belief

BENCH = "large-hmm"
WORDS, DIM, LIVE, CLASSES = 10_000, 256, 256, 128
LANES, WINDOW, RATE = 64, 32, 0.5
GROWTH = [2**n for n in range(13, 19)]
PRODUCT = 8192  # rows and columns of the matrix product that measures the peak rate
PTB_TOKENS, VALID_TOKENS = 929_589, 73_760


def timed(
    work: Callable[[], object], repeats: int, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The seconds of one call, after enough calls for compilation and graph capture."""
    for _ in range(8):
        work()
    settle(device)
    begun = clock()
    for _ in range(repeats):
        work()
    settle(device)
    return (clock() - begun) / repeats


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def fresh_memory(device: torch.device) -> int:
    """The bytes in use before a measurement; resets the peak."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_memory(device: torch.device, before: int = 0) -> float | None:
    """The peak since `fresh_memory` in GB, without what was in use before."""
    return (torch.cuda.max_memory_allocated() - before) / 1e9 if device.type == "cuda" else None


def text(lanes: int, window: int) -> Tensor:
    """Random words that follow Zipf's law: [lanes, window]."""
    frequency = 1 / torch.arange(5.0, WORDS + 5)
    drawn = torch.multinomial(frequency, lanes * window, replacement=True, generator=seeded())
    return drawn.view(lanes, window)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def word_classes(classes: int) -> Tensor:
    return torch.randint(classes, (WORDS,), generator=seeded())


def build(states: int, classes: int, rate: float = RATE) -> HMM:
    """A neural HMM with state dropout."""
    words = ["<eos>", "<unk>", *(f"w{n}" for n in range(WORDS - 2))]
    choices = HMMConfig(states=states, params="neural", dim=DIM, dropout="state", dropout_rate=rate, init_std=0.05)
    partition = Partition(word_classes(classes), [states // classes] * classes)
    return HMM.build(Vocabulary(words, [1] * WORDS), choices, True, 0, partition)


def learner_of(states: int, classes: int, device: torch.device, rate: float = RATE) -> GradientLearner:
    model = build(states, classes, rate).to(device)
    return GradientLearner(model, TrainConfig(learner="gradient", lr=1e-3, average=0.999), 1000)


def steps_of(learner: GradientLearner, lanes: int = LANES) -> Callable[[], object]:
    """A training step with a carried state, after a first step without."""
    tokens, full = text(lanes, WINDOW), torch.full((lanes,), WINDOW)
    first = Batch(tokens, full, torch.ones(lanes, dtype=torch.bool), True, True)
    onward = Batch(tokens, full, torch.zeros(lanes, dtype=torch.bool), True, False)
    learner.step(first)
    return lambda: learner.step(onward)


def our_step(states: int, classes: int, device: torch.device, lanes: int = LANES) -> Callable[[], object]:
    """A training step of a neural HMM with state dropout and a carried state."""
    return steps_of(learner_of(states, classes, device), lanes)


def published_step(states: int, classes: int, device: torch.device) -> Callable[[], object]:
    """A training step by the published method, with dense matrices."""
    live = states // classes
    kept_of_each = round(live * (1 - RATE))
    model = Published(word_classes(classes).to(device), classes, live, DIM).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    tokens = text(LANES, WINDOW).to(device)
    first = torch.arange(classes, device=device)[:, None] * live

    def step() -> None:
        kept = torch.rand(classes, live, device=device).topk(kept_of_each).indices + first
        optimizer.zero_grad()
        (-model(tokens, kept) / tokens.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return step


def product_rate(device: torch.device) -> float:
    """TFLOP/s of a large matrix product in bfloat16 (on a CPU, float32)."""
    size = PRODUCT if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    matrix = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / timed(lambda: matrix @ matrix, 10, device) / 1e12


def normaliser_step(states: int, device: torch.device) -> Callable[[], object]:
    """The O(S^2 d) part of a step: the row normalisers of the kept states, forward and backward."""
    kept = round(states * (1 - RATE))
    queries, keys = (torch.randn(kept, DIM, device=device).mul_(0.2).requires_grad_() for _ in range(2))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def step() -> None:
        row_logsumexp(queries, keys, None, dtype).sum().backward()

    return step


def inference_step(states: int, classes: int, device: torch.device) -> Callable[[], object]:
    """The O(T k^2 d) part of a step: blocks between live states and the pass over time, forward and backward."""
    partition = Partition(word_classes(classes), [round(states / classes * (1 - RATE))] * classes).to(device)
    queries, keys = (torch.randn(partition.num_states, DIM, device=device).mul_(0.2) for _ in range(2))
    norms, table = torch.zeros(partition.num_states, device=device), torch.randn(WORDS, partition.live, device=device)
    weights = [given.requires_grad_() for given in (queries, keys, norms, table)]
    tokens, dtype = text(LANES, WINDOW).to(device), torch.bfloat16 if device.type == "cuda" else torch.float32

    with torch.no_grad():
        operator = Softmax(queries, keys, None, dtype)
    operator.log_norm = norms  # passed in, so that nothing is computed for all states

    def step() -> None:
        potentials = Categorical(table, partition, partition.num_states).potentials(tokens, all_observed=True)
        first = torch.full((LANES, partition.live), 1 / partition.live, device=device)
        log_norms, _ = discrete.score(Belief(first, potentials.first_ids()), operator, potentials)
        torch.autograd.grad(log_norms.sum(), weights)

    return step


def compare(states: int, classes: int, device: torch.device, repeats: int) -> None:
    """Report the step, its parts and the published method for one size."""
    before = fresh_memory(device)
    seconds, memory = timed(our_step(states, classes, device), repeats, device), peak_memory(device, before)
    before = fresh_memory(device)
    try:
        theirs = timed(published_step(states, classes, device), repeats, device)
        their_memory = peak_memory(device, before)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        theirs, their_memory = None, None
        print(f"the published way: {' '.join(str(error).split())[:200]}", flush=True)
    fresh_memory(device)
    rate, normaliser = product_rate(device), timed(normaliser_step(states, device), repeats, device)
    inference = timed(inference_step(states, classes, device), repeats, device)
    kept = round(states * (1 - RATE))
    floor = 8 * kept**2 * DIM / rate / 1e12
    case = f"{states} states, {classes} classes, {LANES}x{WINDOW} tokens"
    emit(
        BENCH, case, "step", seconds * 1e3, "published way", theirs and theirs * 1e3, theirs and theirs / seconds, "ms",
        tokens_per_second=LANES * WINDOW / seconds, product_tflops=rate, floor_ms=floor * 1e3,
        of_floor=seconds / floor, parameter_ms=normaliser * 1e3, inference_ms=inference * 1e3,
        rest_ms=(seconds - normaliser - inference) * 1e3, parameter_share_of_product_rate=floor / normaliser,
    )  # fmt: skip
    if memory is not None:
        ratio = their_memory and their_memory / memory
        emit(BENCH, case, "memory", memory, "published way", their_memory, ratio, "GB")


def evaluate_whole(states: int, classes: int, device: torch.device) -> None:
    """Score a text as long as PTB's validation set, as one stream, with the full model."""
    before = fresh_memory(device)
    model = build(states, classes).to(device).eval()
    tokens = text(1, VALID_TOKENS).to(device)
    with torch.no_grad():
        model.score(tokens[:, :100], model.start(1))
        model.memo.version = None  # computed again
        settle(device)
        begun = time.perf_counter()
        model.score(tokens, model.start(1))
        settle(device)
    seconds = time.perf_counter() - begun
    case = f"{states} states, {classes} classes, {VALID_TOKENS} tokens as one stream"
    emit(BENCH, case, "evaluation", seconds, "none", None, None, "s", memory_gb=peak_memory(device, before))


def grow(device: torch.device, repeats: int, sizes: list[int]) -> None:
    """Growth of time and memory with the number of states S: for a fixed number of states per class (theory: S^2 and
    S), and for a fixed number of classes (S^2 for both)."""
    for name, classes_of, theory in (
        (f"{LIVE} states per class", lambda s: s // LIVE, 1.0),
        (f"{CLASSES} classes", lambda s: CLASSES, 2.0),
    ):
        times, memories = [], []
        for states in sizes:
            before = fresh_memory(device)
            times.append(timed(our_step(states, classes_of(states), device), repeats, device))
            memories.append(peak_memory(device, before) or 0.0)
            emit(BENCH, f"growth, {name}, {states} states", "step", times[-1] * 1e3, "none", None, None, "ms",
                 memory_gb=memories[-1])  # fmt: skip
        for metric, grown, expected in (("time", times, 2.0), ("memory", memories, theory)):
            emit(BENCH, f"growth, {name}", f"exponent of {metric}", exponent(sizes, grown), "theory", expected,
                 None, "", last=exponent(sizes[-2:], grown[-2:]))  # fmt: skip


def epoch_on_cpu(repeats: int) -> None:
    """The seconds of an epoch of PTB's length with 4,096 states in 64 classes, extrapolated from a few steps."""
    device = torch.device("cpu")
    lanes = 8192 // WINDOW
    seconds = timed_few(our_step(4096, 64, device, lanes), repeats)
    emit(BENCH, "4096 states, 64 classes, CPU", "epoch", seconds * PTB_TOKENS / 8192, "bar", 600.0,
         600.0 / (seconds * PTB_TOKENS / 8192), "s", tokens_per_second=8192 / seconds)  # fmt: skip


def timed_few(work: Callable[[], object], repeats: int) -> float:
    work()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begun) / repeats


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks large-hmm", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--largest", type=int, default=2**18, help="most states of the growth")
    parser.add_argument("--skip-growth", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        epoch_on_cpu(min(options.repeats, 3))
        return
    device = torch.device("cuda")
    for states, classes in ((32768, 128), (65536, 256)):
        compare(states, classes, device, options.repeats)
    evaluate_whole(65536, 256, device)
    if not options.skip_growth:
        grow(device, options.repeats, [size for size in GROWTH if size <= options.largest])
