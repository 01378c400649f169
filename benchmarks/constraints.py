"""Generation under a constraint: preparation, a token of guidance and samples, against the published method (Ctrl-G).

Texts have exactly 32 tokens and contain n keywords in any order, so the automaton has 2^n states."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.large_hmm import build, fresh_memory, peak_memory, settle
from benchmarks.report import emit
from trellis.constraints import Alphabet, Automaton, all_of, anything, contains
from trellis.constraints.automaton import side_by_side
from trellis.emissions import Categorical, Partition
from trellis.emissions.classed import Likelihoods
from trellis.inference.constrained import PATIENCE, Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_sampling import sample
from trellis.inference.guided import sample_next
from trellis.inference.queries import Chain
from trellis.transitions import Dense
from trellis.types import Belief

BENCH = "constraints"
LENGTH, ROWS = 32, 8  # tokens of a text, and texts side by side
SEVERAL = 16  # constraints that are prepared together
SENTENCE, BATCH = 30, 32  # words of a sentence at most, and sentences side by side
AUTOMATA = (1, 4, 16, 64)
LOWEST = -1e30  # the published method's log of zero
AGREE, LEAST = 1e-2, -50.0  # nats by which corrections in float32 may differ, where they are above


class Published:
    """Ctrl-G's method with its cost: log space, one product with the vocabulary for every state of the automaton. The
    exponentials of the emission, which its code computes at every token, are computed once."""

    def __init__(self, matrix: Tensor, emission: Tensor, automaton: Automaton) -> None:
        device, number = matrix.device, len(automaton.moves)
        pairs = [(s, int(d)) for s in range(number) for d in np.unique(automaton.moves[s])]
        masks = np.stack([(automaton.moves[s] == d)[automaton.classes] for s, d in pairs])
        self.source, self.target = torch.tensor(pairs, device=device).T
        self.masks = torch.tensor(masks, dtype=matrix.dtype, device=device)  # [E, V]
        self.leaves = torch.nn.functional.one_hot(self.source, number).T.to(matrix)  # [S, E]
        self.enters = torch.nn.functional.one_hot(self.target, number).to(matrix)  # [E, S]
        self.matrix, self.emission, self.accepting = matrix, emission, torch.tensor(automaton.accepting, device=device)

    def prepare(self) -> None:
        weights = (self.masks @ self.emission.T).log().nan_to_num(neginf=LOWEST)  # [E, H]
        ends = torch.where(self.accepting, 0.0, LOWEST).to(weights)[:, None].expand(-1, weights.shape[1])
        message, self.messages = times_log(ends, self.matrix.T), []
        for _ in range(LENGTH + 1):
            self.messages.append(message)
            joined = weights + message[self.target]
            message = times_log(sum_by(joined, self.source, len(self.accepting)), self.matrix.T)

    def step(self, ahead: Tensor, states: Tensor, left: int) -> Tensor:
        """log p(constraint | tokens so far, next token): [B, V]."""
        joint = ahead.log().unsqueeze(1) + self.messages[left - 1]  # [B, S, H]
        words = times_log(joint.flatten(0, 1), self.emission).view(len(ahead), -1, self.emission.shape[1])
        edges = (self.leaves[states].unsqueeze(-1) * self.enters).mT  # [B, S, E]
        allowed = (edges.flatten(0, 1) @ self.masks).view_as(words).log().nan_to_num(neginf=LOWEST)
        return (words + allowed).logsumexp(1) - (ahead @ self.emission).log()


def times_log(values: Tensor, matrix: Tensor) -> Tensor:
    top = values.amax(-1, keepdim=True)
    return ((values - top).exp() @ matrix).log() + top


def sum_by(values: Tensor, groups: Tensor, number: int) -> Tensor:
    """logsumexp of rows by group: [E, H] -> [S, H]."""
    index = groups.unsqueeze(-1).expand_as(values)
    top = values.new_full((number, values.shape[1]), LOWEST).scatter_reduce(0, index, values, "amax")
    total = torch.zeros_like(top).scatter_add(0, index, (values - top[groups]).exp())
    return total.log().nan_to_num(neginf=LOWEST) + top


@contextmanager
def own_precision(path: str) -> Iterator[Any]:
    """Ctrl-G's code, with products in TF32, which it chooses for the whole process when it is imported."""
    sys.path.insert(0, path)
    precision = torch.get_float32_matmul_precision()
    import ctrlg

    torch.set_float32_matmul_precision("high")
    try:
        yield ctrlg
    finally:
        torch.set_float32_matmul_precision(precision)


def ctrl_g(ctrlg: Any, matrix: Tensor, emission: Tensor, automaton: Automaton) -> Callable[[], Any]:
    """Makes Ctrl-G's own processor."""
    states, size = emission.shape
    pairs = [(s, int(d)) for s in range(len(automaton.moves)) for d in np.unique(automaton.moves[s])]
    edges = [(s, d, (automaton.moves[s] == d)[automaton.classes]) for s, d in pairs]
    graph = {"edges": edges, "initial_state": 0, "accept_states": set(np.flatnonzero(automaton.accepting).tolist())}
    hmm = SimpleNamespace(
        alpha_exp=matrix, beta=emission.log(), gamma=matrix.new_full((states,), 1 / states).log(),
        hidden_states=states, vocab_size=size, eos_token_id=-1,
    )  # fmt: skip
    dfa = ctrlg.DFAModel(graph, size).to(matrix.device)
    return lambda: ctrlg.ConstraintLogitsProcessor(hmm, dfa, LENGTH, LENGTH, [], hmm_batch_size=ROWS)


class Timer(NamedTuple):
    """Measures the smallest of several times, after one call, or on a GPU after as many as precede a CUDA graph."""

    device: torch.device
    repeats: int
    clock: Callable[[], float]

    def __call__(self, work: Callable[[], Any]) -> float:
        for _ in range(1 if self.device.type == "cpu" else PATIENCE + 2):
            work()
        found = []
        for _ in range(self.repeats):
            settle(self.device)
            begun = self.clock()
            work()
            settle(self.device)
            found.append(self.clock() - begun)
        return min(found)


def random_chain(states: int, words: int, classes: int, device: torch.device) -> Chain:
    """A random chain; with classes, every word has states / classes live states."""
    generator = torch.Generator(device).manual_seed(0)
    matrix = torch.rand(states, states, generator=generator, device=device).square_()
    matrix /= matrix.sum(-1, keepdim=True)
    table = torch.rand(words, states // max(classes, 1), generator=generator, device=device).square_().add_(1e-3)
    support = None
    if classes:
        word_class = torch.randint(classes, (words,), generator=generator, device=device)
        support = Partition(word_class, [states // classes] * classes).to(device)
        totals = table.new_zeros(states).index_add_(0, support.support.flatten(), table.flatten())
        table /= totals[support.support]
    else:
        table /= table.sum(0)
    prior = matrix.new_full((1, states), 1 / states)
    return Chain(Belief(prior), Dense(matrix), Categorical(table.log_(), support, states))


class Ours(NamedTuple):
    """Seconds of preparation, alone and as one of SEVERAL, of the corrections for one token of ROWS texts, of one token
    sampled from another model with guidance, and of one from the HMM; and the corrections to compare."""

    prepared: float
    together: float
    corrected: float
    guided: float
    sampled: float
    corrections: Tensor
    memory: float | None


def other_model(words: int, device: torch.device) -> Tensor:
    """log p(next token) of a guided model: Zipf's law in a random order, [ROWS, V]."""
    draw = torch.Generator().manual_seed(1)
    ranks = torch.stack([torch.randperm(words, generator=draw) for _ in range(ROWS)])
    return (-(ranks + 1.0).log()).log_softmax(-1).to(device)


def keywords(size: int, words: int, number: int = 0) -> Automaton:
    """Texts with log2(size) keywords, in any order."""
    count = size.bit_length() - 1
    chosen = map(str, range(number * count, (number + 1) * count))
    return (all_of(*chosen) if count else anything()).compile(Alphabet.of_ids(words))


def measured(chain: Chain, automaton: Automaton, tokens: Tensor, timed: Timer) -> Ours:
    device, before = tokens.device, fresh_memory(tokens.device)
    likelihoods, span = Likelihoods.of(chain.emission), Span(LENGTH, LENGTH, None)
    prepared = timed(lambda: Product(chain, automaton, span, likelihoods))
    number, size = likelihoods.num_symbols, len(automaton.moves)
    several, starts = side_by_side([keywords(size, number, i) for i in range(SEVERAL)])
    together = timed(lambda: Product(chain, several, span, likelihoods, starts)) / SEVERAL
    product = Product(chain, automaton, span, likelihoods)
    position = product.begin(ROWS)
    words, draw = other_model(number, device), torch.Generator().manual_seed(2)

    def read() -> Position:
        return product.read(position, tokens, context=True)[0]

    corrected = timed(lambda: product.corrections(read()))
    guided = timed(lambda: sample_next(product, read(), words, 1.0, draw))
    sampled = timed(lambda: sample(product, position)) / LENGTH
    return Ours(
        prepared, together, corrected, guided, sampled, product.corrections(position), peak_memory(device, before)
    )


def preparation(states: int, words: int, sizes: Sequence[int], timed: Timer) -> None:
    """The preparation of one constraint alone, for several sizes of the automaton."""
    chain, span = random_chain(states, words, 0, timed.device), Span(LENGTH, LENGTH, None)
    likelihoods, matrix = Likelihoods.of(chain.emission), chain.transition.dense()
    table, read = chain.emission.dense().T.exp().contiguous(), timed(matrix.sum)
    emit(BENCH, f"{states} states", "reading the transition matrix", read * 1e3, "none", None, None, "ms")
    for size in sizes:
        automaton, name = keywords(size, words), f"{states} states, {words} words, automaton of {size}"
        ours = timed(partial(Product, chain, automaton, span, likelihoods))
        theirs = timed(Published(matrix, table, automaton).prepare)
        emit(BENCH, name, "preparation", ours * 1e3, "its method", theirs * 1e3, theirs / ours, "ms")


def case(states: int, words: int, size: int, options: argparse.Namespace, timed: Timer) -> None:
    """One size of the automaton."""
    device, classes = timed.device, options.classes
    chain, name = random_chain(states, words, classes, device), f"{states} states, {words} words, automaton of {size}"
    name += f", {classes} word classes" if classes else ""
    automaton = keywords(size, words)
    tokens = torch.arange(ROWS, device=device) + words // 2
    ours = measured(chain, automaton, tokens, timed)
    if classes:  # the published method has no word classes
        for metric, seconds in (*preparation_of(ours), *tokens_of(ours)):
            emit(BENCH, name, metric, seconds * 1e3, "none", None, None, "ms", memory_gb=ours.memory)
        return
    matrix, table = chain.transition.dense(), chain.emission.dense().T.exp().contiguous()  # [H, V]
    prior, first = chain.prior.probs.expand(ROWS, -1), torch.zeros(ROWS, dtype=torch.int64, device=device)
    peer, others = Published(matrix, table, automaton), other_model(words, device)
    theirs = timed(peer.prepare)

    def step() -> Tensor:
        ahead = prior * table[:, tokens].T
        return peer.step(ahead / ahead.sum(-1, keepdim=True) @ matrix, first, LENGTH)

    differ = (peer.step(prior, first, LENGTH) - ours.corrections).abs()
    assert differ[ours.corrections > LEAST].lt(AGREE).all()
    drawn = timed(lambda: torch.multinomial((step() + others).softmax(-1), 1))
    report(name, "its method", ours, theirs, timed(step), drawn)
    if options.ctrl_g:
        with own_precision(options.ctrl_g) as ctrlg:
            beside_ctrl_g(name, ctrl_g(ctrlg, matrix, table, automaton), ours, timed)


def preparation_of(ours: Ours) -> list[tuple[str, float]]:
    """Seconds per constraint."""
    return [("preparation", ours.prepared), (f"preparation, {SEVERAL} together", ours.together)]


def tokens_of(ours: Ours) -> list[tuple[str, float]]:
    """Seconds per token of one text, in three uses."""
    return [
        ("corrections of a token", ours.corrected / ROWS),
        ("a generated token, guided", ours.guided / ROWS),
        ("a generated token, HMM", ours.sampled / ROWS),
    ]


def report(name: str, peer: str, ours: Ours, prepared: float, corrected: float, drawn: float) -> None:
    """Compare with a peer's seconds of preparation, of corrections for ROWS texts, and of tokens sampled with them."""
    for metric, seconds in preparation_of(ours):
        emit(BENCH, name, metric, seconds * 1e3, peer, prepared * 1e3, prepared / seconds, "ms")
    for (metric, seconds), theirs in zip(tokens_of(ours), (corrected, drawn, drawn), strict=True):
        emit(BENCH, name, metric, seconds * 1e3, peer, theirs * 1e3 / ROWS, theirs / ROWS / seconds, "ms")


def beside_ctrl_g(name: str, make: Any, ours: Ours, timed: Timer) -> None:
    prepared = timed(make)
    processor, ranges = make(), [[LENGTH, LENGTH]] * ROWS
    processor.compute_logits([()] * ROWS, ranges, ROWS)
    prefixes = [(token,) for token in range(100, 100 + ROWS)]
    words = other_model(processor.hmm_model.vocab_size, timed.device)

    def step() -> Tensor:
        joint, alone = processor.compute_logits(prefixes, ranges, ROWS)
        return joint - alone

    drawn = timed(lambda: torch.multinomial((step() + words).softmax(-1), 1))
    report(name, "Ctrl-G", ours, prepared, timed(step), drawn)


def sentences(states: int, classes: int, device: torch.device, repeats: int) -> None:
    """A batch of sentences of the shape of ptb-64k (untrained), each with a keyword: with and without preparation."""
    model = build(states, classes).to(device)
    model.carry, constraint, name = False, contains("w500"), f"{states} states, {classes} word classes, a keyword"
    before = fresh_memory(device)
    model.constrain(constraint, most=4).sample(BATCH)  # compiles
    settle(device)
    begun = time.perf_counter()
    found = model.constrain(constraint, most=SENTENCE)
    settle(device)
    prepared, draw = time.perf_counter() - begun, torch.Generator().manual_seed(0)
    written, begun = 0, time.perf_counter()
    for _ in range(repeats):
        written += sum(len(row) + 1 for row in sample(found.product, found.product.begin(BATCH), draw))
    drawn, written = (time.perf_counter() - begun) / repeats, written // repeats
    memory = peak_memory(device, before)
    emit(BENCH, name, "preparation", prepared * 1e3, "none", None, None, "ms", memory_gb=memory)
    emit(BENCH, name, "sentences", written / drawn, "none", None, None, "tokens/s")
    emit(BENCH, name, "with preparation", written / (drawn + prepared), "none", None, None, "tokens/s")


@torch.no_grad()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks constraints", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="512 states, 5,000 words")
    parser.add_argument("--states", type=int, nargs="*", help="default: 4,096; on a GPU also 32,768")
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument(
        "--automata", type=int, nargs="*", default=AUTOMATA, help="states of the automaton, powers of two"
    )
    parser.add_argument("--classes", type=int, default=0, help="word classes: states / classes are live at a word")
    parser.add_argument("--sentences", type=int, metavar="STATES", help="only: sentences of a large HMM, 256 classes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--preparation", action="store_true", help="only the preparation of a constraint")
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU time instead of elapsed time, for a busy machine and one thread"
    )
    parser.add_argument("--ctrl-g", metavar="PATH", help="a copy of Ctrl-G's repository")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    if options.sentences:
        sentences(options.sentences, 256, device, options.repeats)
        return
    timed = Timer(device, options.repeats, time.process_time if options.cpu_time else time.perf_counter)
    sizes = options.states or ([512] if options.quick else [4096, 32768] if device.type == "cuda" else [4096])
    words = 5000 if options.quick else options.words
    for states in sizes:
        if options.preparation:
            preparation(states, words, options.automata, timed)
            continue
        for size in options.automata:
            case(states, words, size, options, timed)
