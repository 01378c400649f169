"""The main job, top to bottom: text -> vocabulary -> batches -> model -> training -> figures -> files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from trellis.config import BatchConfig, RunConfig, choose, load_config, to_toml
from trellis.corpus import Corpus, Split, load_corpus
from trellis.corpus.batches import Batches, Documents, Sentences, Streams
from trellis.devices import choose_device
from trellis.errors import TrellisError
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner, VariationalEMLearner
from trellis.families.files import FAMILIES, FILE, load, save_model
from trellis.families.hmm.long_run import estimate_long_run
from trellis.families.hmm.model import HMM
from trellis.families.lds.model import LDS
from trellis.families.neural.base import NeuralModel
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.families.ngram.model import ORDERS, NGram
from trellis.families.tag_hmm.model import TagHMM
from trellis.learning.base import Learner
from trellis.learning.em import EMLearner, StepwiseEMLearner
from trellis.learning.gradient import GradientLearner
from trellis.models.base import LanguageModel, PersistedModel
from trellis.params import TableParams
from trellis.params.support import SUPPORTS
from trellis.storage import claimed, write_text
from trellis.tasks.lm import READINGS, evaluate, side_by_side
from trellis.train.checkpoint import BEST, LAST, load_weights
from trellis.train.lds import Densities, train_lds
from trellis.train.loop import fit
from trellis.train.state import TrainState
from trellis.train.tagger import Texts, load_texts, tag_scores, train_tagger

CONFIG, RESULTS, START = "config.toml", "results.json", "start"
SETTLE_LANES, SETTLE_WINDOW, SETTLE_BATCHES = 16, 64, 64  # of the text that a large model settles on

LEARNERS: dict[str, Callable[..., Learner]] = {
    "gradient": GradientLearner,
    "em": EMLearner,
    "stepwise-em": StepwiseEMLearner,
}
LAYERED_LEARNERS: dict[str, Callable[..., Learner]] = {
    "gradient": GradientLearner,
    "em": VariationalEMLearner,
    "stepwise-em": StepwiseVariationalLearner,
}
BATCHES: dict[str, Callable[[Split, BatchConfig, int], Batches]] = {
    "streams": lambda split, config, seed: Streams(split, config.lanes, config.window, seed, config.rotate),
    "sentences": lambda split, config, seed: Sentences(split, config.tokens, seed),
    "documents": lambda split, config, seed: Documents(split, config.lanes, config.window, seed),
}
TIED = {"all": True, "none": False}  # whether the output words of a network have the embeddings of its input words


def new_hmm(config: RunConfig, corpus: Corpus) -> HMM:
    support = choose(SUPPORTS, config.model.emission, "model.emission")(corpus, config.model, config.seed)
    return HMM.build(corpus.vocab, config.model, config.batches.order != "sentences", config.seed, support)


def new_fhmm(config: RunConfig, corpus: Corpus) -> FHMM:
    if config.batches.order != "sentences":
        raise TrellisError('A factorial HMM learns from whole sentences: set batches.order = "sentences".')
    model = FHMM.build(corpus.vocab, config.model, config.seed)
    model.check_joint()
    return model


def new_feedforward(config: RunConfig, corpus: Corpus) -> FeedForward:
    size, tied = config.model, choose(TIED, config.model.tying, "model.tying")
    return FeedForward(corpus.vocab, size.dim, size.depth, size.net_dropout, size.window, tied, size.hidden)


def new_lstm(config: RunConfig, corpus: Corpus) -> LSTM:
    size, tied = config.model, choose(TIED, config.model.tying, "model.tying")
    return LSTM(corpus.vocab, size.dim, size.depth, size.net_dropout, tied)


def new_rnn(config: RunConfig, corpus: Corpus) -> RNN:
    if not config.model.start:
        return RNN(corpus.vocab, config.model.dim, config.model.net_dropout)
    lds = load(config.model.start)
    if not isinstance(lds, LDS) or lds.vocab.words != corpus.vocab.words:
        raise TrellisError(f"model.start is {config.model.start}: it must be an lds trained on the same vocabulary.")
    return RNN.from_lds(lds, config.model.net_dropout)


Trained = HMM | FHMM | NeuralModel
UNTRAINED: dict[str, Callable[[RunConfig, Corpus], Trained]] = {
    "hmm": new_hmm,
    "fhmm": new_fhmm,
    "feedforward": new_feedforward,
    "lstm": new_lstm,
    "rnn": new_rnn,
}


@dataclass
class Figures:
    """One row of the table of results."""

    model: str
    states: int | None
    parameters: int
    train: float  # perplexities
    valid: float
    test: float
    tokens_per_second: float  # scoring


@dataclass
class RunResult:
    """What a training run came to."""

    figures: list[Figures]
    state: TrainState | None
    corpus: str
    folder: Path
    densities: Densities | None = None  # of a model that has no perplexity
    tagging: dict[str, float] | None = None  # how good the tags of a tagger are, in percent

    @property
    def interrupted(self) -> bool:
        return self.state is not None and self.state.outcome == "interrupted"


def train(config: RunConfig, folder: Path, resume: bool = False) -> RunResult:
    """Train the model that `config` describes; everything is written into `folder`."""
    model_class = choose(FAMILIES, config.model.family, "model.family")
    choose_device(config.device)
    corpus = load_texts(config.data) if issubclass(model_class, TagHMM) else load_corpus(config.data)
    for split in ("train", "valid", "test"):
        corpus[split]  # what is not there is better told before the training than after it
    with claimed(folder):
        check_folder(config, folder, resume)
        write_text(folder / CONFIG, to_toml(config))
        if isinstance(corpus, Texts):
            return train_on_tags(folder, config, corpus, resume)
        return train_in(folder, model_class, config, corpus, resume)


def check_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Refuse to overwrite a training, or to go on with one that was another; how long it trains may change."""
    if not any((folder / name).exists() for name in (LAST, FILE)):
        return
    if not resume:
        raise TrellisError(f"{folder} already holds a training: resume it, or name another folder.")
    before = load_config(folder / CONFIG)
    parts = [f"{part}.{field.name}" for part in ("data", "model", "batches") for field in fields(getattr(config, part))]
    for name in (*parts, "seed", "train.learner"):
        then, now = (attrgetter(name)(c) for c in (before, config))
        if then != now:
            raise TrellisError(
                f"{folder} was trained with {name} = {then!r}, not {now!r}: resume with that, or name another folder."
            )


def train_in(
    folder: Path, model_class: type[PersistedModel], config: RunConfig, corpus: Corpus, resume: bool
) -> RunResult:
    """`train` in a folder that is ours."""
    if issubclass(model_class, NGram):
        order = ORDERS.get(config.model.family, config.model.order)
        model = NGram.fit(corpus.vocab, corpus["train"], order, config.model.crossing)
        return conclude(model, None, corpus, config, folder)
    if issubclass(model_class, LDS):
        lds, densities = train_lds(config, corpus, choose_device(config.device), folder)
        save_model(folder / FILE, lds, {"corpus": corpus.description, "data": asdict(config.data), **asdict(densities)})
        write_text(folder / RESULTS, json.dumps({"corpus": corpus.description, **asdict(densities)}, indent=1) + "\n")
        return RunResult([], None, corpus.description, folder, densities)
    trained, state = train_model(with_start(config, folder), corpus, folder, resume)
    if state.outcome == "interrupted":
        return RunResult([], state, corpus.description, folder)
    return conclude(trained, state, corpus, config, folder)


def with_start(config: RunConfig, folder: Path) -> RunConfig:
    """A start that is described by a TOML is trained first, in the folder itself, on the same device."""
    if not config.model.start.endswith(".toml"):
        return config
    start = replace(load_config(config.model.start), device=config.device, seed=config.seed)
    train(start, folder / START, resume=True)
    return replace(config, model=replace(config.model, start=str(folder / START)))


def train_on_tags(folder: Path, config: RunConfig, texts: Texts, resume: bool) -> RunResult:
    """The same for a model of words and tags."""
    model, state = train_tagger(config, texts, choose_device(config.device), folder, resume)
    if state.outcome == "interrupted":
        return RunResult([], state, texts.description, folder)
    result = RunResult([], state, texts.description, folder, tagging=tag_scores(model, texts))
    outcome = {"corpus": result.corpus, "tagging": result.tagging}
    save_model(folder / FILE, model, {"data": asdict(config.data), **outcome})
    write_text(folder / RESULTS, json.dumps(outcome, indent=1) + "\n")
    return result


def train_model(config: RunConfig, corpus: Corpus, folder: Path, resume: bool) -> tuple[Trained, TrainState]:
    """Fit a model, and return it with the best weights that validation saw."""
    torch.manual_seed(config.seed)
    layered = config.model.family == FHMM.family
    make_batches = choose(BATCHES, config.batches.order, "batches.order")
    make_learner = choose(LAYERED_LEARNERS if layered else LEARNERS, config.train.learner, "train.learner")
    model = UNTRAINED[config.model.family](config, corpus).to(choose_device(config.device))
    if make_learner is not GradientLearner and isinstance(model, NeuralModel):
        raise TrellisError(
            f"train.learner is {config.train.learner!r}, but a {model.family} model learns by gradient alone; "
            "set train.learner=gradient."
        )
    batches = make_batches(corpus["train"], config.batches, config.seed)
    learner = make_learner(model, config.train, config.train.total_steps(len(batches)))

    def valid_perplexity() -> float:
        return evaluate(model, READINGS[config.batches.order](corpus["valid"])).perplexity

    state = fit(learner, batches, valid_perplexity, config.train, folder, resume)
    if (folder / BEST).exists():
        model.load_state_dict(load_weights(folder / BEST, model.device))
    model.eval()
    if isinstance(model, HMM) and not isinstance(model.params, TableParams):
        estimate_long_run(model, islice(Streams(corpus["train"], SETTLE_LANES, SETTLE_WINDOW), SETTLE_BATCHES))
    return model, state


def conclude(
    model: LanguageModel, state: TrainState | None, corpus: Corpus, config: RunConfig, folder: Path
) -> RunResult:
    """Measure the model beside the baselines on every split, and save model and figures."""
    baselines = [NGram.fit(corpus.vocab, corpus["train"], n) for name, n in ORDERS.items() if name != model.name]
    figures = [measure(m, corpus, config.batches.order) for m in (*baselines, model)]
    about = {
        "corpus": corpus.description,
        "data": asdict(config.data),
        "order": config.batches.order,
        "figures": asdict(figures[-1]),
    }
    save_model(folder / FILE, model, about)
    result = RunResult(figures, state, corpus.description, folder)
    outcome: dict[str, Any] = {"corpus": corpus.description, "figures": [asdict(row) for row in figures]}
    if state is not None:
        outcome["training"] = {name: getattr(state, name) for name in ("step", "epoch", "tokens", "seconds", "outcome")}
    write_text(folder / RESULTS, json.dumps(outcome, indent=1) + "\n")
    return result


def measure(model: LanguageModel, corpus: Corpus, order: str) -> Figures:
    """Perplexity on every split; tokens per second while scoring the training text, which is read side by side."""
    perplexity = {name: evaluate(model, READINGS[order](corpus[name])).perplexity for name in ("valid", "test")}
    begun = time.perf_counter()
    perplexity["train"] = evaluate(model, side_by_side(order, corpus["train"])).perplexity
    speed = corpus["train"].tokens.size / (time.perf_counter() - begun)
    states = model.num_states if isinstance(model, HMM | FHMM) else None
    return Figures(model.name, states, model.num_parameters(), **perplexity, tokens_per_second=speed)
