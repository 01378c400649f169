"""Dense HMMs on a GPU: EM steps and forward passes beside pyjuice and plain torch; time, memory and error."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import types
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarks.report import emit
from trellis import engines
from trellis.emissions import Categorical
from trellis.inference import discrete
from trellis.learning.em import expect
from trellis.parts import Parts, Prior
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

BENCH = "dense-gpu"
SYMBOLS = 10_000
PASSES = 3  # products of [B T, K] with [K, K] in an EM step; one in a forward pass
PRODUCTS = 6  # bfloat16 products for one of float32 precision
TWICE = 32  # steps up to which pyjuice runs in both precisions
STATISTICS = 1 << 33  # bytes of one [B, T, K] array in float64 up to which statistics are compared


class Case(NamedTuple):
    states: int
    batch: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.states:,} states, {self.batch} x {self.steps}"


class Problem(NamedTuple):
    """Parameters in float64 on the CPU, tokens on the GPU."""

    start: Tensor  # [K]
    transition: Tensor  # [K, K]
    emission: Tensor  # [K, V]
    tokens: Tensor  # [B, T]

    @classmethod
    def draw(cls, case: Case) -> Problem:
        generator = torch.Generator(device="cuda").manual_seed(case.states)
        shapes = (case.states,), (case.states, case.states), (case.states, SYMBOLS)
        weights = [torch.rand(s, generator=generator, device="cuda", dtype=torch.float64).pow(4) for s in shapes]
        frequency = 1 / torch.arange(5.0, SYMBOLS + 5, device="cuda")
        drawn = torch.multinomial(frequency, case.batch * case.steps, replacement=True, generator=generator)
        start, transition, emission = ((w / w.sum(-1, keepdim=True)).cpu() for w in weights)
        return cls(start, transition, emission, drawn.view(case.batch, case.steps))


class Contestant(Protocol):
    """An HMM on the GPU in float32."""

    def forward(self) -> Tensor:
        """log p(x) of every sequence: [B]."""

    def em(self) -> None:
        """One EM step; the parameters are replaced."""


class Ours:
    """`learning.em.expect` and `Parts.maximised`."""

    def __init__(self, problem: Problem) -> None:
        start, transition = (p.to("cuda", torch.float32) for p in problem[:2])
        table = problem.emission.T.log().contiguous().to("cuda", torch.float32)
        self.parts = Parts(start, Dense(transition), Categorical(table, None, len(start)))
        self.tokens = problem.tokens
        self.lengths = torch.full((len(self.tokens),), self.tokens.shape[1], device="cuda")

    def forward(self) -> Tensor:
        prior = Belief(self.parts.start.expand(len(self.tokens), -1))
        potentials = Potentials(self.parts.emission.table, self.tokens)
        return discrete.log_likelihood(prior, self.parts.transition, potentials, self.lengths)

    def em(self) -> None:
        counts, _ = expect(self.parts, self.tokens, self.lengths)
        self.parts = self.parts.maximised(counts, Prior(), consume=True)


class Plain:
    """Scaled forward-backward in plain torch, step by step; also the reference, in float64."""

    def __init__(self, problem: Problem, dtype: torch.dtype = torch.float32) -> None:
        self.start, self.transition, emission = (p.to("cuda", dtype) for p in problem[:3])
        self.emission, self.tokens = emission.T.contiguous(), problem.tokens.T  # [V, K], [T, B]

    def filter(self) -> tuple[Tensor, Tensor]:
        """a_t [T, B, K] and c_t [T, B, 1]."""
        probs = self.start.new_empty(*self.tokens.shape, len(self.start))
        norms = self.start.new_empty(*self.tokens.shape, 1)
        for t, words in enumerate(self.tokens):
            joint = (self.start if t == 0 else probs[t - 1] @ self.transition) * self.emission[words]
            norms[t] = joint.sum(-1, keepdim=True)
            torch.div(joint, norms[t], out=probs[t])
        return probs, norms

    def forward(self) -> Tensor:
        return self.filter()[1].double().log().sum(0).squeeze(-1)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Expected starts [K], transitions [K, K] and emissions [V, K]."""
        probs, norms = self.filter()
        pulls, message = torch.empty_like(probs), torch.ones_like(probs[0])
        emitted = torch.zeros_like(self.emission)
        for t in reversed(range(len(self.tokens))):
            posterior = probs[t] * message
            emitted.index_add_(0, self.tokens[t], posterior)
            torch.mul(self.emission[self.tokens[t]], message / norms[t], out=pulls[t])
            message = pulls[t] @ self.transition.T
        moved = self.transition * (probs[:-1].flatten(0, 1).T @ pulls[1:].flatten(0, 1))
        return posterior.sum(0), moved, emitted

    def em(self) -> None:
        start, moved, emitted = self.expected()
        self.start, self.transition = start / start.sum(), moved / moved.sum(1, keepdim=True)
        self.emission = emitted / emitted.sum(0)


class PyJuice:
    """pyjuice's compiled circuit, in CUDA graphs; `single`: without its products in bfloat16."""

    def __init__(self, problem: Problem, single: bool) -> None:
        import pyjuice

        start, transition, emission = (p.float() for p in problem[:3])
        sizes = problem.tokens.shape[1], len(start), SYMBOLS
        circuit = pyjuice.structures.HMM(*sizes, alpha=transition, beta=emission, gamma=start)
        self.circuit = pyjuice.compile(circuit, verbose=False).to("cuda")
        self.tokens, self.choices = problem.tokens, {"force_use_fp32": True} if single else {}
        self.steps = 0

    def forward(self) -> Tensor:
        recorded = self.steps == 1  # the second step is captured
        return self.circuit(self.tokens, record_cudagraph=recorded, **self.choices).flatten().double()

    def em(self) -> None:
        self.forward()
        graph = {"record_cudagraph": self.steps == 1}
        self.circuit.backward(self.tokens, flows_memory=0.0, allow_modify_flows=False, **graph)
        self.circuit.mini_batch_em(step_size=1.0, pseudocount=0.0)
        self.steps += 1


class Result(NamedTuple):
    """What one contestant did on one case."""

    em: float  # milliseconds
    forward: float
    memory: float  # GB
    found: list[Tensor]  # log p(x) [B] before an EM step and after it


def measured(make: Callable[[], Contestant]) -> Result:
    graphed = engines.optional_engine("graphed")
    if graphed is not None:
        graphed.memory_of.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    contestant = make()
    found = [contestant.forward().clone()]
    contestant.em()
    found.append(contestant.forward().clone())
    em, forward = timed(contestant.em), timed(contestant.forward)
    return Result(em, forward, (torch.cuda.max_memory_allocated() - start) / 1e9, found)


def timed(work: Callable[[], Any], most: float = 1.0) -> float:
    """Median milliseconds of one call, over at most 20 calls or `most` seconds."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    runs: list[float] = []
    while len(runs) < 3 or (len(runs) < 20 and sum(runs) < most):
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        runs.append(time.perf_counter() - begun)
    return 1e3 * median(runs)


def rate(dtype: torch.dtype, size: int = 8192) -> float:
    """Operations per second of a large product."""
    matrix = torch.randn(size, size, device="cuda").to(dtype)
    return 2 * size**3 / timed(lambda: matrix @ matrix) * 1e3


def bandwidth() -> float:
    """Bytes per second of a large copy."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * len(source) / timed(lambda: target.copy_(source)) * 1e3


class Machine(NamedTuple):
    bfloat16: float
    float32: float
    bandwidth: float

    def floors(self, case: Case, em: bool) -> dict[str, float]:
        """Milliseconds that the products of one step take at least, and its bytes: parameters read once (EM: counts and
        new parameters written), and numbers of every step: potentials and a_t (EM: a_t again, w_t twice)."""
        states, tokens = case.states, case.batch * case.steps
        products = 2.0 * (PASSES if em else 1) * tokens * states**2
        parameters, numbers = states * (states + SYMBOLS), states * tokens
        traffic = 4 * (3 * parameters + 5 * numbers if em else parameters + 2 * numbers)
        return {
            "products_ms": 1e3 * PRODUCTS * products / self.bfloat16,
            "float32_products_ms": 1e3 * products / self.float32,
            "bytes_ms": 1e3 * traffic / self.bandwidth,
        }


def error(found: Tensor, exact: Tensor) -> float:
    """The largest relative error of a log-likelihood."""
    return float(((found.double() - exact) / exact).abs().max())


def count_error(problem: Problem) -> float:
    """The largest relative error of our expected counts above 1e-3."""
    exact = Plain(problem, torch.float64).expected()
    ours = Ours(problem)
    counts, _ = expect(ours.parts, ours.tokens, ours.lengths)
    worst = 0.0
    for one, other in zip((counts.start, counts.transition, counts.emission), exact, strict=True):
        relative = ((one.double() - other) / other).abs()
        worst = max(worst, float(torch.where(other > 1e-3, relative, 0.0).max()))
    return worst


def contestants(case: Case, problem: Problem, pyjuice: bool) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    yield "torch", lambda: Plain(problem)
    if pyjuice:
        yield "pyjuice", lambda: PyJuice(problem, single=False)
        if case.steps <= TWICE:
            yield "pyjuice-tf32", lambda: PyJuice(problem, single=True)


@torch.no_grad()
def race(case: Case, machine: Machine, pyjuice: bool) -> None:
    problem = Problem.draw(case)
    reference = Plain(problem, torch.float64)
    exact = [reference.forward()]
    reference.em()
    exact.append(reference.forward())
    del reference
    small = 8 * case.states * case.batch * case.steps <= STATISTICS
    precision = {"counts_error": count_error(problem)} if small else {}
    ours = measured(lambda: Ours(problem))
    errors = [error(found, right) for found, right in zip(ours.found, exact, strict=True)]
    for name, make in contestants(case, problem, pyjuice):
        try:
            theirs = measured(make)
        except Exception as problem_found:
            emit(BENCH, case.name, "em", ours.em, name, " ".join(str(problem_found).split())[:200], None, "ms")
            continue
        for metric in ("em", "forward", "memory"):
            mine, other = getattr(ours, metric), getattr(theirs, metric)
            more = {} if metric == "memory" else machine.floors(case, metric == "em")
            emit(
                BENCH, case.name, metric, mine, name, other, other / mine, "GB" if metric == "memory" else "ms", **more
            )
        for metric, index in (("error before a step", 0), ("error after a step", 1)):
            other = error(theirs.found[index], exact[index])
            emit(BENCH, case.name, metric, errors[index], name, other, other / errors[index], "relative", **precision)


def use_pyjuice(path: str) -> None:
    """Import from a source checkout; without numba, its functions run uncompiled."""
    sys.path.insert(0, f"{path}/src")
    try:
        import numba  # noqa: F401
    except ImportError:
        stand_in: Any = types.ModuleType("numba")
        stand_in.njit = lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function
        stand_in.prange = range
        sys.modules["numba"] = stand_in


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dense-gpu")
    parser.add_argument("--pyjuice", help="a source checkout of github.com/Tractables/pyjuice")
    parser.add_argument("--states", type=numbers, default=[256, 1024, 4096, 8192])
    parser.add_argument("--batches", type=numbers, default=[32, 256])
    parser.add_argument("--lengths", type=numbers, default=[32, 256])
    parser.add_argument("--quick", action="store_true", help="256 sequences of 32 tokens only")
    chosen = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("dense-gpu needs a GPU; torch sees none.", file=sys.stderr)
        return
    if chosen.pyjuice:
        use_pyjuice(chosen.pyjuice)
    if chosen.quick:
        chosen.batches, chosen.lengths = [256], [32]
    machine = Machine(rate(torch.bfloat16), rate(torch.float32), bandwidth())
    for case in (Case(k, b, t) for k in chosen.states for b in chosen.batches for t in chosen.lengths):
        race(case, machine, bool(chosen.pyjuice))
