"""Grammars: training steps and inside passes, against plain torch and as sizes grow; sentences under a constraint."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.growth import exponent
from benchmarks.large_hmm import settle
from benchmarks.report import emit
from trellis.config import TrainConfig
from trellis.constraints import all_of
from trellis.corpus import Vocabulary
from trellis.families.hmm.parameters.dropout import Dropout
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import inside, log_likelihoods, read_words
from trellis.families.pcfg.model import PCFG
from trellis.families.pcfg.parameters import NeuralParams, Size, TableParams
from trellis.learning.gradient import GradientLearner
from trellis.types import Batch

BENCH = "pcfg"
WORDS, BATCH, LENGTH = 10_000, 64, 24
RACES = {  # nonterminals, preterminals, rank (0: a simple grammar)
    "cpu": ((64, 128, 0), (256, 512, 64), (256, 512, 0)),
    "cuda": ((256, 512, 0), (1024, 2048, 0), (1024, 2048, 256)),
}
GROWTH = {  # ranks, nonterminals and lengths, each with the other two fixed
    "cpu": ((32, 64, 128, 256), (128, 256, 512, 1024), (12, 24, 48, 96)),
    "cuda": ((256, 512, 1024, 2048, 4096), (512, 1024, 2048, 4096), (16, 32, 64, 128)),
}
FIXED = {"cpu": (64, 128), "cuda": (512, 1024)}  # rank and nonterminals
STEPS = {  # nonterminals, preterminals and the fraction of both that is dropped, of whole steps of the learner
    "cpu": ((64, 128, 0.0),),
    "cuda": ((1024, 2048, 0.0), (4096, 8192, 0.0), (4096, 8192, 0.5)),
}
PRETERMINALS = 128  # of the growth
CONSTRAINED = ((64, 128, 0), (512, 1024, 0), (2048, 4096, 0))  # like RACES
SAMPLES = 10
SECONDS = 2  # of repetitions
DIM, WARM = 512, 6  # of the learner's nets; its steps before the measurement


def plain(grammar: Grammar, tokens: Tensor) -> Tensor:
    """log p of sentences of equal length by the textbook inside algorithm in log space, with torch's own gradient."""
    left, right, root = grammar.lefts.log(), grammar.rights.log(), grammar.root.log()
    ranks = None if grammar.ranks is None else grammar.ranks.log()
    count, length, words = grammar.nonterminals, tokens.shape[1], grammar.emission.table[tokens]  # [B, L, P]

    def product(values: Tensor, table: Tensor) -> Tensor:
        """log of exp(values) [..., k] times exp(table) [k, n]."""
        top = values.amax(-1, keepdim=True).detach()
        return ((values - top).exp() @ table.exp()).log() + top

    lefts, rights = [product(words, left[count:])], [product(words, right[count:])]
    for width in range(2, length + 1):
        starts = length - width + 1
        parts = [lefts[k - 1][:, :starts] + rights[width - k - 1][:, k : k + starts] for k in range(1, width)]
        inner = torch.stack(parts).logsumexp(0)
        symbols = inner if ranks is None else product(inner, ranks.T)
        lefts.append(product(symbols, left[:count]))
        rights.append(product(symbols, right[:count]))
    return (symbols[:, 0] + root[:count]).logsumexp(-1)


def problem(
    nonterminals: int, preterminals: int, rank: int, length: int, device: torch.device
) -> tuple[TableParams, Tensor]:
    torch.manual_seed(0)
    params = TableParams(Size(WORDS, 0, nonterminals, preterminals, rank)).to(device)
    return params, torch.randint(1, WORDS, (BATCH, length), device=device)


def step(params: TableParams, tokens: Tensor, score: Callable[[Grammar, Tensor], Tensor]) -> Callable[[], Tensor]:
    """A forward and a backward pass."""

    def work() -> Tensor:
        params.zero_grad(set_to_none=True)
        total = score(params.grammar(), tokens).sum()
        total.backward()
        return total.detach()

    return work


def ours(grammar: Grammar, tokens: Tensor) -> Tensor:
    lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    return log_likelihoods(grammar, tokens, lengths)


def measured(work: Callable[[], object], device: torch.device) -> float:
    """Seconds, the best of several: on a CPU, those of the process, since the machine may be shared."""
    on_cpu, least, total = device.type == "cpu", float("inf"), 0.0
    clock = time.process_time if on_cpu else time.perf_counter
    work()
    while total < SECONDS:
        settle(device)
        begun = clock()
        work()
        settle(device)
        taken = clock() - begun
        least, total = min(least, taken), total + taken
    return least


def kept(score: Callable[[Grammar, Tensor], Tensor], params: TableParams, tokens: Tensor) -> float:
    """GB that a forward pass keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score(params.grammar(), tokens).sum()
    return sum(sizes.values()) / 1e9


def race(cases: Sequence[tuple[int, int, int]], device: torch.device) -> None:
    """Training steps against plain torch on the same grammar and sentences."""
    for sizes in cases:
        params, tokens = problem(*sizes, LENGTH, device)
        known = float(step(params, tokens, ours)()), float(step(params, tokens, plain)())
        assert abs(known[0] - known[1]) < 1e-3 * abs(known[1]), known
        mine, theirs = (measured(step(params, tokens, score), device) for score in (ours, plain))
        memory = [kept(score, params, tokens) for score in (ours, plain)]
        nonterminals, preterminals, rank = sizes
        case = f"{nonterminals} + {preterminals} symbols, " + (f"rank {rank}" if rank else "simple")
        emit(
            bench=BENCH, case=case, metric="training step", ours=tokens.numel() / mine, peer="plain torch",
            peers=tokens.numel() / theirs, ratio=theirs / mine, unit="tokens/s", gigabytes=memory[0],
            peer_gigabytes=memory[1],
        )  # fmt: skip


def vocabulary() -> Vocabulary:
    return Vocabulary(["<eos>", *(f"w{n}" for n in range(1, WORDS))], [1] * WORDS)


def learner_of(nonterminals: int, preterminals: int, rate: float, device: torch.device) -> GradientLearner:
    """A learner of a simple grammar with nets."""
    counts = nonterminals, preterminals
    drops = (Dropout("state" if rate else "none", rate, states=count) for count in counts)
    model = PCFG(vocabulary(), NeuralParams(Size(WORDS, 0, *counts), dim=DIM), *drops).to(device)
    return GradientLearner(model, TrainConfig(learner="gradient", lr=0.001))


def stepping(sizes: tuple[int, int, float], patience: int, device: torch.device) -> float:
    """Seconds of a step of the learner, which is captured as a CUDA graph after `patience` steps."""
    tokens = torch.randint(1, WORDS, (BATCH, LENGTH + 1))
    tokens[:, -1] = 0
    whole, fresh = torch.full((BATCH,), LENGTH + 1), torch.ones(BATCH, dtype=torch.bool)
    learner = learner_of(*sizes, device)
    learner.run.patience = patience
    for _ in range(WARM):
        learner.step(Batch(tokens, whole, fresh, True, True))
    return measured(partial(learner.step, Batch(tokens, whole, fresh, True, True)), device)


def learning(device: torch.device) -> None:
    """Steps of the learner; on a GPU as CUDA graphs, and without them."""
    on_gpu, tokens = device.type == "cuda", BATCH * (LENGTH + 1)
    for sizes in STEPS[device.type]:
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        mine = stepping(sizes, 2, device)
        peak = torch.cuda.max_memory_reserved() / 1e9 if on_gpu else None
        theirs = stepping(sizes, sys.maxsize, device) if on_gpu else None
        nonterminals, preterminals, rate = sizes
        emit(
            bench=BENCH, case=f"{nonterminals} + {preterminals} symbols, nets, dropout {rate}", metric="learner",
            ours=tokens / mine, peer="without graphs", peers=theirs and tokens / theirs,
            ratio=theirs and theirs / mine, unit="tokens/s", peak_gigabytes=peak,
        )  # fmt: skip


def growth(device: torch.device) -> None:
    """Exponents of the inside pass: O(L^3 R + L^2 R^2) per sentence, after O(N R^2) once."""
    ranks, nonterminals, lengths = GROWTH[device.type]
    rank, symbols = FIXED[device.type]
    cases: dict[str, tuple[Sequence[int], Callable[[int], tuple[int, int, int]], float]] = {
        "rank": (ranks, lambda one: (symbols, one, LENGTH), 2.0),
        "nonterminals": (nonterminals, lambda one: (one, rank, LENGTH), 0.0),
        "length": (lengths, lambda one: (symbols, rank, one), 3.0),
    }
    for metric, (sizes, place, most) in cases.items():
        seconds = []
        for size in sizes:
            count, chosen, length = place(size)
            params, tokens = problem(count, PRETERMINALS, chosen, length, device)
            seconds.append(measured(passing(params, tokens), device))
        fitted, tail = exponent(sizes, seconds), exponent(sizes[-2:], seconds[-2:])
        emit(
            bench=BENCH, case="inside", metric=metric, ours=fitted, peer="largest term", peers=most,
            ratio=None, unit="exponent", tail_exponent=tail, sizes=list(sizes), seconds=seconds,
        )  # fmt: skip


def constrained(sizes: tuple[int, int, int], device: torch.device) -> None:
    """Sentences of at most 100 words that contain two words, against samples that are rejected if they do not."""
    constraint = all_of("w1", "w2")
    torch.manual_seed(0)
    model = PCFG(vocabulary(), TableParams(Size(WORDS, 0, *sizes))).to(device)
    begun = time.process_time()
    found = model.constrain(constraint)
    once = time.process_time() - begun
    prepare = measured(lambda: model.constrain(constraint).prob, device)
    draw = measured(lambda: found.sample(SAMPLES), device)
    free = measured(lambda: model.sample(SAMPLES), device) / found.prob
    following = measured(lambda: model.constrain(constraint).predict("w1 w3"), device)
    emit(
        bench=BENCH, case=f"{sizes[0]} + {sizes[1]} symbols", metric=f"{SAMPLES} constrained samples",
        ours=prepare + draw, peer="rejection (expected)", peers=free, ratio=free / (prepare + draw), unit="s",
        once_per_model=once, constraint=prepare, samples=draw, next_words=following,
    )  # fmt: skip


def passing(params: TableParams, tokens: Tensor) -> Callable[[], object]:
    """The inside pass alone, of a grammar whose tables are there."""
    lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    with torch.no_grad():
        grammar = params.grammar()

    def work() -> object:
        with torch.no_grad():
            return inside(grammar, read_words(grammar, tokens, lengths), lengths).scales

    return work


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks pcfg")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="the smallest race alone")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    race(RACES[device.type][: 1 if args.quick else None], device)
    if not args.quick:
        learning(device)
        growth(device)
        for sizes in CONSTRAINED:
            constrained(sizes, device)
