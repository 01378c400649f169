"""The configuration of a run: data, model, batches, training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from trellis.errors import TrellisError
from trellis.options import Options, build, choose, option, parse_value, put, read_toml, shown, split_override
from trellis.registry import Family, find_family

HOMES = "model", "train", "batches", "data", "eval"  # the sections of an option passed by name, in this order
GIVEN = "<python"  # prefix of data.source for a text passed from Python


@dataclass(frozen=True)
class DataConfig(Options):
    """The text and its preprocessing; None means the default of the source (see trellis.corpus.sources)."""

    prefix: ClassVar[str] = "data."
    source: str = option("python-docs", 'a named corpus, a file, a folder, or "-" for standard input')
    reader: str | None = option(None, "text | fasta | csv | arrow, or a reader of another package")
    column: str | None = option(
        None,
        'csv, arrow: name of the column with the sequences. csv: or its index; "user:event" groups events by user',
    )
    tokenizer: str | None = option(None, "whitespace | words | characters | bytes | symbols")
    documents: str | None = option(None, "document boundaries: file | blank | heading")
    heading: str | None = option(None, 'documents = "heading": regular expression matching a document\'s first line')
    lower: bool | None = option(None, "lower-case the text")
    digits: bool | None = option(None, "replace each run of digits by N")
    unk: bool | None = option(None, "map rare and unseen words to <unk>")
    min_count: int | None = option(
        None,
        "minimum count of a word to enter the vocabulary. Default for words: 2, or 1 if the text contains <unk> or if "
        "more than half of its tokens would become <unk>. Default for other tokens: 1",
    )
    min_letters: float = option(
        0.0, "drop training sentences in which a smaller share of the characters are letters a-z", within="[0, 1]"
    )
    max_size: int | None = option(None, "vocabulary size including <eos> and <unk>. 0: no limit")
    valid_fraction: float = option(0.05, "share held out for validation, if the source has no splits", within="[0, 1)")
    test_fraction: float = option(0.05, "share held out for testing, if the source has no splits", within="[0, 1)")
    shards: str = option("", "folder or pattern of files to train on instead of the training split; read as a stream")
    licence: str = option("", "licence of the text, for the model card. Default: that of the named corpus, if known")


@dataclass(frozen=True)
class TaggedDataConfig(Options):
    """The tagged text (see trellis.corpus.tagged)."""

    prefix: ClassVar[str] = "data."
    source: str = option("", "the name of a tagged data set, or a file")
    reader: str | None = option(
        None, "file format: conll | conllu | medpost | word_tag (default: conllu for .conllu, else conll)"
    )
    column: str | None = option(None, "tag column: its index from 0 (conll), upos or xpos (conllu)")
    valid_fraction: float = option(0.05, "fraction of a file held out for validation", within="[0, 1)")
    test_fraction: float = option(0.05, "fraction of a file held out for testing", within="[0, 1)")
    licence: str = option("", "licence of the text, for the model card. Default: that of the named corpus, if known")


@dataclass(frozen=True)
class ModelConfig(Options):
    """The type and size of the model: the options that all families share."""

    prefix: ClassVar[str] = "model."
    family: str = ""

    @property
    def learner(self) -> str:
        """The default learner, if it is not the family's first."""
        return ""

    def check(self, run: RunConfig) -> None:
        """Raise on incompatible options in different sections of the run."""

    def usual(self, learner: str) -> Mapping[str, Any]:
        """The defaults of options in other sections, by dotted name, where they differ for this model and a learner."""
        return {}

    def num_values(self, words: int) -> int:
        """A lower bound on the number of learned values, to refuse models that cannot fit into memory."""
        return 0

    def values_per_token(self, words: int) -> int:
        """A lower bound on the values that training stores for each token of a batch."""
        return 1


@dataclass(frozen=True)
class BatchConfig(Options):
    """How the text is divided into batches."""

    prefix: ClassVar[str] = "batches."
    order: str = option(
        "",
        "streams: the text in order, with the state carried over. sentences: shuffled sentences. documents: shuffled "
        "documents, with the state carried over within each. Default: sentences for FASTA and CSV, else the family's",
        choices=("", "streams", "sentences", "documents"),
    )
    lanes: int = option(128, "streams, documents: parallel sequences per batch", within="[1, 1e9]")
    window: int = option(64, "streams, documents: steps per batch", within="[1, 1e9]")
    tokens: int = option(8192, "sentences: tokens per batch", within="[1, 1e9]")
    rotate: bool = option(False, "streams: start each epoch at a different offset, wrapping around the text")

    @property
    def size(self) -> int:
        """The tokens of a batch."""
        return self.tokens if self.order == "sentences" else self.lanes * self.window


@dataclass(frozen=True)
class FitConfig(Options):
    """Learning options that all families share."""

    prefix: ClassVar[str] = "train."
    learner: str = option("", "learning algorithm. Default: that of the family")


@dataclass(frozen=True)
class TrainConfig(FitConfig):
    """Stopping rules, optimisation and logging; 0 disables a limit or a feature."""

    epochs: int = option(10, "passes over the training text", within="[0, inf)")
    max_steps: int = option(0, "stop after this many steps", within="[0, inf)")
    max_seconds: float = option(0.0, "stop after this many seconds", within="[0, inf)")
    patience: int = option(0, "stop after this many evaluations without improvement", within="[0, inf)")
    eval_every: int = option(0, "steps between evaluations. 0: evaluate after each epoch", within="[0, inf)")
    log_every: int = option(50, "steps between lines of metrics.jsonl", within="[0, inf)")
    checkpoint_steps: int = option(0, "steps between checkpoints", within="[0, inf)")
    checkpoint_seconds: float = option(300.0, "seconds between checkpoints", within="[0, inf)")
    max_rise: float = option(5.0, "stop if the loss rises by this many nats per token", within="[0, inf)")
    lr: float = option(0.01, "gradient: learning rate", within="[0, 1000]")
    beta1: float = option(0.9, "gradient: decay of the first moment", within="[0, 1)")
    beta2: float = option(0.999, "gradient: decay of the second moment", within="[0, 1)")
    weight_decay: float = option(0.0, "gradient: decoupled weight decay", within="[0, 1000]")
    clip: float = option(5.0, "gradient: largest norm. Longer gradients are scaled down", within="[0, inf)")
    schedule: str = option("constant", "gradient: learning-rate schedule", choices="constant cosine plateau")
    warmup: int = option(0, "gradient: steps of linear warm-up", within="[0, inf)")
    lr_floor: float = option(0.0, "gradient: lower bound of every schedule, as a fraction of lr", within="[0, 1]")
    lr_factor: float = option(0.5, "plateau: factor by which lr is reduced", within="[0, 1]")
    lr_patience: int = option(1, "plateau: evaluations without improvement before lr is reduced", within="[0, inf)")
    average: float = option(0.0, "gradient: decay of the exponential moving average of the weights", within="[0, 1)")
    pseudocount: float = option(1e-4, "em: added to each expected count of an epoch or batch", within="[0, 1e9]")
    teacher: str = option("", "a trained model of the same vocabulary, whose samples are added to the training text")
    teacher_tokens: int = option(1_000_000, "number of tokens sampled from the teacher", within="[1, inf)")
    em_power: float = option(
        0.5, "stepwise-em: batch k = 2, 3, ... has step size (k + 1) ** -em_power", within="[0, 100]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.epochs or self.max_steps or self.max_seconds or self.patience):
            raise TrellisError("Training would never end: set train.epochs, max_steps, max_seconds or patience.")

    def total_steps(self, steps_per_epoch: int) -> int:
        """The maximum number of steps under `epochs` and `max_steps`; 0 if neither is set."""
        return min((limit for limit in (self.epochs * steps_per_epoch, self.max_steps) if limit), default=0)


@dataclass(frozen=True)
class EvalConfig(Options):
    """How the trained model is evaluated."""

    prefix: ClassVar[str] = "eval."
    test: bool = option(True, "evaluate on the test split. false: drop it, for example while options are tuned")
    ngram: int = option(5, "order of the Kneser-Ney n-gram model in the table of results. 0: none", within="[0, 1000]")
    ngram_tokens: int = option(10_000_000, "maximum number of training tokens for that model", within="[0, inf)")


@dataclass(frozen=True)
class RunConfig(Options):
    """The complete configuration of a run; omitted sections take the family's defaults.

    Parameters
    ----------
    data : DataConfig or TaggedDataConfig
        How the text is read.
    model : ModelConfig
        The family and the options of the model.
    batches
        The size and the order of batches.
    train : TrainConfig
        The learner and its options.
    seed
        The random seed.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.
    budget
        A limit on the training time, such as "30s", "5m" or "2h".
    eval
        What is evaluated after training.
    given
        The options that were set, by dotted name. A family must not change them.

    Examples
    --------
    >>> trellis.RunConfig().train.learner
    'stepwise-em'
    """

    data: Any = None
    model: Any = field(default_factory=lambda: find_family("hmm").load("config")())
    batches: BatchConfig = BatchConfig()
    train: Any = None
    seed: int = option(0, "random seed", within="[0, 9223372036854775807]")
    device: str = option("auto", "auto (the GPU if available) | cpu | cuda")
    budget: str = option(
        "", "limit on the training time, such as 30s, 5m or 2h. Without it, states = auto plans for 11 minutes"
    )
    eval: EvalConfig = EvalConfig()
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        """Fill in the family's defaults and check that all sections are compatible."""
        super().__post_init__()
        family = self.family
        data, train = self.data or family.load("data")(), self.train or family.load("train")()
        train = train if train.learner else replace(train, learner=self.model.learner or next(iter(family.learners)))
        for name, value in {"data": data, "train": train}.items():
            object.__setattr__(self, name, value)
        choose(family.learners, train.learner, f"train.learner of the family {family.name}")
        self.check_budget()
        self.model.check(self)

    def check_budget(self) -> None:
        if self.budget and seconds_of(self.budget) and not hasattr(self.train, "max_seconds"):
            raise TrellisError(f"budget: the family {self.family.name} is not trained step by step; remove the budget.")

    def is_set(self, name: str) -> bool:
        """Whether an option "section.key" was set, or differs from its default."""
        return name in self.given or self.value(name) != _defaults(self.model.__class__).value(name)

    def value(self, name: str) -> Any:
        """The value of the option "section.key"."""
        section, key = name.split(".")
        return getattr(getattr(self, section), key)

    def filled_from(self, other: RunConfig) -> RunConfig:
        """This run, in which options of model, batches and training that are not set have the values of another run."""
        parts = ("model", "batches", "train")
        names = [f"{part}.{one.name}" for part in parts for one in fields(getattr(self, part)) if one.name != "family"]
        return self.with_options({name: other.value(name) for name in names if not self.is_set(name)})

    def with_options(self, options: Mapping[str, Any]) -> RunConfig:
        """This run with other values of some options, by dotted name."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            put(sections, name.split("."), value)
        return replace(self, **{name: replace(getattr(self, name), **changed) for name, changed in sections.items()})

    def with_usual(self) -> RunConfig:
        """This run, in which options that are not set have the model's `usual` values."""
        usual = self.model.usual(self.train.learner)
        return self.with_options({name: value for name, value in usual.items() if not self.is_set(name)})

    @property
    def family(self) -> Family:
        """The family of the model."""
        return find_family(self.model.family)

    def ordered(self, order: str = "") -> RunConfig:
        """This run with `batches.order` filled in: if it is not set, it is the reader's `order`, or else the
        family's."""
        chosen = self.batches.order or order or self.family.order
        return replace(self, batches=replace(self.batches, order=chosen))


@cache
def _defaults(model: type) -> RunConfig:
    return RunConfig(model=model())


def run_config(tables: Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Build a run from TOML tables, with overrides given as "section.key=value"."""
    changed = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tables.items()}
    given = [split_override(override) for override in overrides]
    for _, text in (pair for pair in given if pair[0] == ["model", "family"]):
        choose_family(changed, text)
    kinds = sections_of(changed)
    for keys, text in given:
        section, path = (kinds[keys[0]], keys[1:]) if keys[0] in kinds else (RunConfig, keys)
        put(changed, keys, parse_value(text, section, path))
    owner = f" of the family {table_of(changed)['family']}"
    tables = {name: changed[name] for name in kinds if isinstance(changed.get(name), Mapping)}
    names = [f"{name}.{key}" for name, table in tables.items() for key in table]
    for name, kind in kinds.items():
        if name in changed:
            changed[name] = build(kind, changed[name], f"{name}.", owner * (name == "model"))
    return replace(build(RunConfig, changed), given=frozenset(names))


def seconds_of(duration: str) -> float:
    """The seconds of a duration such as 90, 30s, 5m or 2h.

    >>> seconds_of("1.5m")
    90.0
    """
    unit = {"s": 1, "m": 60, "h": 3600}.get(duration[-1:], 0)
    try:
        seconds = float(duration[:-1] if unit else duration) * (unit or 1)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise TrellisError(f"budget is {shown(duration)}: write a time such as 30s, 5m or 2h.")
    return seconds


def choose_family(tables: dict[str, Any], family: str) -> None:
    """Change the family, dropping options that it does not have."""
    if table_of(tables).get("family", "hmm") == family:
        return
    tables["model"] = {"family": family}
    for name, kind in sections_of(tables).items():
        if isinstance(table := tables.get(name), dict):
            tables[name] = {one.name: table[one.name] for one in fields(kind) if one.name in table}
    if isinstance(train := tables.get("train"), dict) and train.get("learner") not in find_family(family).learners:
        train.pop("learner", None)
    if isinstance(batches := tables.get("batches"), dict):
        batches.pop("order", None)


def sections_of(tables: dict[str, Any]) -> dict[str, type[Options]]:
    """The dataclass of every section; the model's depends on its family."""
    model = table_of(tables)
    model.setdefault("family", "hmm")
    load = find_family(str(model["family"])).load
    own = {"data": load("data"), "model": load("config"), "batches": BatchConfig, "train": load("train")}
    return own | {"eval": EvalConfig}


def table_of(tables: dict[str, Any]) -> dict[str, Any]:
    model = tables.setdefault("model", {})
    if not isinstance(model, dict):
        raise TrellisError(f"model must be a table, not {shown(model)}.")
    return model


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run from a TOML file; omitted options keep their defaults."""
    tables = read_toml(path)
    try:
        return run_config(tables, overrides)
    except TrellisError as error:
        raise TrellisError(f"{path}: {error}") from error


def with_settings(family: str, settings: Mapping[str, Any]) -> RunConfig:
    """A run from keyword arguments: tables of options, or options by name. Each name belongs to the first of the
    sections model, train, batches, data and eval that has it."""
    tables: dict[str, Any] = {"model": {"family": family}}
    kinds = sections_of(tables)
    own = {one.name for one in fields(RunConfig)} - set(kinds)
    for key, value in settings.items():
        if key in kinds and isinstance(value, Mapping):
            tables.setdefault(key, {}).update(value)
            continue
        homes = [name for name in HOMES if key in (one.name for one in fields(kinds[name]))]
        put(tables, [key] if key in own else [(homes or ["model"])[0], key], value)
    return run_config(tables)
