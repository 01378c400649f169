"""Choose the options of an HMM from the text and the speed of the machine, for `model.states = "auto"`.

`candidates` lists settings for a text, best first; `plan` chooses the first that can be trained in time. An option that
the user has set is never changed."""

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from trellis.config import RunConfig, seconds_of
from trellis.corpus import Corpus
from trellis.families.hmm.model import build
from trellis.families.hmm.parameters.contexts import MOST_TOKENS, context_states
from trellis.registry import resolve
from trellis.training.fit import BATCHES

logger = logging.getLogger(__name__)

USUAL_TIME = 660.0  # seconds of training to plan for without a budget
SHARE = 0.85  # fraction of the budget to plan for; the rest is a margin for validation and errors of the estimate
FEW_TYPES, OFTEN = 512, 100  # up to this many types, each this often on average, states are contexts of symbols
MOST_CLONES, MOST_CONTEXTS = 192, 4096  # maximum number of states of a symbol, and of all symbols together
ROW_PSEUDOCOUNT = 5.0  # pseudocount of all transitions from a state, relative to counts of the whole text
FEWEST_STEPS, PATIENCE = 200, 10  # minimum steps, and patience, if the user sets the number of states
SIZES = 128, 64, 32, 16, 8  # states per class
FEWEST_TOKENS = 100_000  # minimum for training nets, summed over all epochs
TIMED_SECONDS, TIMED_STEPS, UNTIMED_STEPS = 1.5, 12, 3
KINDS = "model.emission", "model.params", "model.init", "train.learner"  # options that determine the kind of model


class Facts(NamedTuple):
    """The facts about text and machine on which the choice depends, besides speed."""

    tokens: int
    types: int
    records: bool  # independent sequences rather than a stream
    gpu: bool = False
    contexts: tuple[int, ...] = ()  # the number of useful contexts of each symbol, if there are few types


class Candidate(NamedTuple):
    """Options by dotted name, and the number of epochs, which may be reduced to `fewest` if time is short."""

    options: dict[str, Any]
    epochs: int
    fewest: int
    reason: str


def choose(run: RunConfig, corpus: Corpus, device: str) -> RunConfig:
    """The run with options chosen for the text and the machine, if `model.states` is auto. Otherwise, the run with more
    epochs if the text is small. Logs the choice."""
    if run.model.states:
        return with_epochs(run, corpus)
    facts = facts_of(corpus, run.batches.order or corpus.order, device)
    suited = [one for one in candidates(facts) if suits(one, run)] or [plain(facts, run)]
    logger.info("model.states = auto: timing a few training steps of models of different sizes")

    def speed(options: dict[str, Any]) -> float:
        return seconds_per_token(filled(run, options).ordered(corpus.order), corpus, device)

    options, reason, seconds = plan(suited, facts.tokens, speed, limit_of(run))
    chosen = filled(run, options)
    shown = {name: value for name, value in options.items() if not run.is_set(name)}
    logger.info(f"model.states = auto: {reason}")
    at_most = {"model.states"} if chosen.model.init == "contexts" else set()
    pairs = (f"{name} {'≤' if name in at_most else '='} {value}" for name, value in shown.items())
    logger.info("  " + ", ".join(pairs))
    logger.info(f"  training will take about {spoken(seconds)}; to change the choice, set --budget or any option")
    return chosen


def with_epochs(run: RunConfig, corpus: Corpus) -> RunConfig:
    """The run with more epochs if the text has few batches, unless the user has set how long to train."""
    if any(run.is_set(f"train.{name}") for name in ("epochs", "max_steps", "patience")):
        return run
    batches = BATCHES[run.ordered(corpus.order).batches.order](corpus["train"], run.batches, run.seed)
    epochs = -(-FEWEST_STEPS // max(len(batches), 1))
    if epochs <= run.train.epochs:
        return run
    logger.info(f"a small text: train.epochs = {epochs}, train.patience = {PATIENCE}")
    return run.with_options({"train.epochs": epochs, "train.patience": PATIENCE})


def suits(candidate: Candidate, run: RunConfig) -> bool:
    """Whether the candidate is a model of the kind that the user's options require."""
    defaults = RunConfig()
    kinds = {name: candidate.options.get(name, defaults.value(name)) for name in KINDS if run.is_set(name)}
    return all(run.value(name) == value for name, value in kinds.items())


def plain(facts: Facts, run: RunConfig) -> Candidate:
    """A candidate that sets only the number of states, for a kind of model that has no recipe."""
    groups = {"brown": run.model.classes, "cloned": facts.types}.get(run.model.emission, 1)
    options = {"model.states": groups * max(1, 256 // groups)}
    return Candidate(
        options,
        run.train.epochs or 1,
        1,
        "only the number of states is chosen, since no recipe has the options that are set",
    )


def filled(run: RunConfig, options: dict[str, Any]) -> RunConfig:
    """The run with these options, except those that the user has set."""
    if run.is_set("model.classes") and options.get("model.emission") == "brown":
        classes = run.model.classes
        options = options | {"model.states": classes * max(1, options["model.states"] // classes)}
    return run.with_options({name: value for name, value in options.items() if not run.is_set(name)})


def limit_of(run: RunConfig) -> float:
    """The training time in seconds to plan for: a share of the budget, or the usual time without a budget."""
    return SHARE * seconds_of(run.budget) if run.budget else USUAL_TIME


def facts_of(corpus: Corpus, order: str, device: str) -> Facts:
    tokens, types = corpus["train"].tokens, len(corpus.vocab)
    contexts: tuple[int, ...] = ()
    if types <= min(FEW_TYPES, tokens.size // OFTEN):
        contexts = tuple(context_states(tokens[:MOST_TOKENS], types, MOST_CLONES)[1].tolist())
    return Facts(tokens.size, types, order == "sentences", device.startswith("cuda"), contexts)


def plan(
    candidates: Sequence[Candidate], tokens: int, speed: Callable[[dict[str, Any]], float], limit: float
) -> tuple[dict[str, Any], str, float]:
    """The options of the first candidate that can be trained within `limit` seconds (or else of the last), the reason
    for this choice, and the expected time. `speed(options)` returns the seconds per token."""
    for chosen in candidates:
        epoch = tokens * speed(chosen.options)
        if chosen is candidates[-1] or chosen.fewest * epoch <= limit:
            break
    epochs = max(1, min(chosen.epochs, int(limit / max(epoch, 1e-9))))
    return chosen.options | {"train.epochs": epochs}, chosen.reason, epochs * epoch


def candidates(facts: Facts) -> Iterator[Candidate]:
    """Candidate settings for a text, best first."""
    if facts.contexts:
        yield from of_contexts(facts)
    else:
        yield from (of_large_nets if facts.gpu else of_nets)(facts)
        yield of_tables(facts)


def of_contexts(facts: Facts) -> Iterator[Candidate]:
    """Candidates for a text with few types: each state is a symbol in a context. If the text consists of records, they
    are trained by batch EM, which keeps rare contexts."""
    clones = MOST_CLONES
    while clones > 1 and num_contexts(facts, clones) > MOST_CONTEXTS:
        clones = clones * 3 // 4
    batch = min(facts.tokens, 8192)
    while True:
        states = num_contexts(facts, clones)
        tokens = facts.tokens if facts.records else batch
        options = {
            "model.states": clones * facts.types,
            "model.emission": "cloned",
            "model.init": "contexts",
            "train.learner": "em" if facts.records else "stepwise-em",
            "train.pseudocount": ROW_PSEUDOCOUNT * tokens / (facts.tokens * states),
            "train.patience": 2,
        }
        reason = f"{facts.types} types: cloned states from contexts, {states:,} states, at most {clones} per symbol"
        yield Candidate(options, 10 if facts.records else 8, 3, reason)
        if clones <= 8:
            return
        clones = clones * 2 // 3


def num_contexts(facts: Facts, clones: int) -> int:
    """The number of states if each symbol has at most `clones` states."""
    return int(np.minimum(facts.contexts, clones).sum())


def of_nets(facts: Facts) -> Iterator[Candidate]:
    """Candidates for words on a CPU: nested nets over embeddings.

    The number of classes grows with the text, and classes have as many states as time allows. Other nets take longer,
    and are used only if `model.params` is set."""
    classes, large, small = num_classes(facts), facts.tokens > 300_000, facts.tokens < 100_000
    lanes = power_of_two(facts.tokens / 7500, 16, 128)
    epochs, fewest = (12, 4) if large else (max(20, FEWEST_TOKENS // facts.tokens), 8)
    sizes = SIZES[3:] if facts.tokens < 5_000 else SIZES if 20_000 <= facts.tokens < 100_000 else SIZES[1:]
    for params, size in [("nested", size) for size in sizes] + [("neural", size) for size in SIZES[3:]]:
        states = size * classes
        options = nets(states, classes, params) | {
            "model.dim": 128 if large else 64,
            "model.dropout": "state",
            "model.dropout_rate": 0.5 if small else 0.25,
            "batches.lanes": lanes,
            "train.lr": 0.009 if lanes > 64 else 0.006,
            "train.weight_decay": 0.6 if small else 0.3,
            "train.average": 0.99,
            "train.warmup": 100,
            "train.patience": max(3, epochs // 5),
        }
        reason = f"{facts.tokens:,} tokens of {facts.types:,} types: nets over embeddings, {states:,} states"
        yield Candidate(options, epochs, fewest, reason)


def of_large_nets(facts: Facts) -> Iterator[Candidate]:
    """Candidates for words on a GPU: the recipes of docs/large-hmm.md, with fewer states for less text."""
    states = power_of_two(facts.tokens / 14, 1024, 65536)
    while states >= 1024:
        options = nets(states, min(128, states // 32, most_classes(facts)), "neural") | {
            "batches.lanes": 64,
            "train.lr": 0.006,
            "train.weight_decay": 0.3,
            "train.average": 0.999,
            "train.warmup": 200,
        }
        if states >= 16384 or facts.tokens <= 300_000:
            options |= {"model.dropout": "state", "model.dropout_rate": 0.5}
        reason = f"{facts.tokens:,} tokens on a GPU: nets over embeddings, {states:,} states"
        epochs = int(np.clip(24e6 / facts.tokens, 2, 24))
        yield Candidate(options, epochs, min(epochs, 6), reason)
        states //= 2


def nets(states: int, classes: int, params: str) -> dict[str, Any]:
    """The options that neural models of any size share."""
    return {
        "model.states": states,
        "model.emission": "brown",
        "model.classes": classes,
        "model.params": params,
        "model.factored": True,
        "model.tying": "but-out",
        "model.init_std": 0.1,
        "batches.window": 32,
        "batches.rotate": True,
        "train.learner": "gradient",
        "train.schedule": "cosine",
        "train.lr_floor": 0.01,
    }


def of_tables(facts: Facts) -> Candidate:
    """The candidate for words if nets would take too long: tables trained by stepwise EM, in epochs of a few
    seconds."""
    classes = num_classes(facts)
    options = {
        "model.states": 16 * classes,
        "model.emission": "brown",
        "model.classes": classes,
        "train.learner": "stepwise-em",
        "train.patience": 2,
    }
    reason = f"{facts.tokens:,} tokens, too many for nets in this time: tables, {16 * classes:,} states"
    return Candidate(options, 6, 1, reason)


def num_classes(facts: Facts) -> int:
    """The number of Brown classes, which grows with the square root of the text."""
    return min(power_of_two(math.sqrt(facts.tokens) / 7, 16, 256), most_classes(facts))


def most_classes(facts: Facts) -> int:
    """The largest power of two that does not exceed the number of types."""
    return 2 ** int(math.log2(facts.types))


def power_of_two(value: float, low: int, high: int) -> int:
    """The nearest power of two within bounds."""
    return int(np.clip(2 ** round(math.log2(max(value, 1.0))), low, high))


def seconds_per_token(run: RunConfig, corpus: Corpus, device: str) -> float:
    """The time per token of a training step, measured on the first batches of a new model."""
    torch.manual_seed(run.seed)
    model = build(run, corpus).to(device)
    batches = BATCHES[run.batches.order](corpus["train"], run.batches, run.seed)
    config = replace(run.train, epochs=run.train.epochs or 1)
    learner = resolve(run.family.learners[config.learner])(model, config, config.total_steps(len(batches)))
    times: list[float] = []
    for batch in islice(batches, UNTIMED_STEPS + TIMED_STEPS):
        begun = time.perf_counter()
        result = learner.step(batch)
        float(result.log_likelihood)  # waits for the device
        times.append((time.perf_counter() - begun) / max(result.tokens, 1))
        if sum(times[UNTIMED_STEPS:]) * result.tokens > TIMED_SECONDS:
            break
    return statistics.median(times[UNTIMED_STEPS:] or times)


def spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
