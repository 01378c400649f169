"""A run as data: frozen dataclasses that read from and write to TOML."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

from trellis.errors import TrellisError

T = TypeVar("T")
TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it becomes integers; None leaves the choice to the source (see trellis.corpus.sources)."""

    source: str = "python-docs"  # a named corpus, a file, a folder, or "-" for standard input
    reader: str | None = None  # text | fasta | csv
    column: str | None = None  # csv: header name or index of the sequences; "id:event" joins the rows of one id
    tokenizer: str | None = None  # whitespace | words | characters | bytes | symbols
    documents: str | None = None  # where a document begins: file | blank | heading
    heading: str | None = None  # documents = "heading": the regular expression of a document's beginning
    lower: bool | None = None
    digits: bool | None = None  # every digit run becomes N
    unk: bool | None = None  # rare and unseen words become <unk>
    min_count: int | None = None  # rarer words are left out of the vocabulary
    min_letters: float = 0.0  # sentences of which a smaller share of the characters is a-z are not trained on
    max_size: int | None = None  # words in the vocabulary, <eos> and <unk> included; 0: no limit
    valid_fraction: float = 0.05  # used where the source has no splits of its own
    test_fraction: float = 0.05
    # tag-hmm (source: a tagged data set, see trellis.corpus.tagged):
    tagged_every: int = (
        1  # one training sentence in so many has its tags; 0: none, states are matched to tags afterwards
    )
    tagged_weight: int = 1  # times that tagged text is read while text without tags is read once
    untagged: str = ""  # text that is learned from without tags: "rest" (the other sentences), or any source


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how large."""

    family: str = "hmm"  # hmm | tag-hmm | fhmm | lds | ngram | unigram | bigram | feedforward | lstm | rnn
    order: int = 5  # ngram: words in the longest n-gram
    crossing: bool = False  # ngram: contexts reach over the ends of sentences
    states: int = 256
    emission: str = "full"  # states of a word: full (all) | brown (its class's) | uniform (random) | cloned (its own)
    classes: int = 64  # brown: of words, each with states of its own
    alone: int = 0  # brown: words, <eos> and then the most frequent ones, that have a class to themselves
    shares: str = "equal"  # brown: states of a class: equal | log (by the log of its count) | root (by the square root)
    live: int = 16  # uniform: states of each word
    params: str = (
        "scalar"  # scalar (one number per probability) | neural (nets over embeddings) | lowrank | lowrank-table
    )
    dropout: str = "none"  # in training: none | state (whole states of each class) | unstructured (single transitions)
    dropout_rate: float = 0.5  # what fraction is left out ...
    dropout_end: float | None = None  # ... and at the end of training, reached in equal steps; None: the same
    blocks: int = 4  # lds: lags that subspace identification looks back and ahead
    horizon: int = 7  # lds: lags that EM takes from the text
    pseudocounts: float = 5.0  # lds: of each word, in the scale that it is given
    noise_prior: float = 5.0  # lds: pseudocounts of each word in the noise, against overfitting rare words
    noise: str = "full"  # lds: of the words: full | diagonal | spherical | bohning
    whiten: bool = True  # lds: whether words are scaled by their frequency before the subspace is identified
    begin: str = "subspace"  # lds: subspace | random
    words: int = 0  # lds: the commonest ones have vectors of their own; 0: all
    # neural, feedforward, lstm, rnn, lds:
    dim: int = 256  # of the embeddings, of the hidden vector
    tying: str = "all"  # which roles of a state share an embedding (see trellis.params.neural.TYINGS), or of a word
    start: str = (
        ""  # rnn: the run of an lds (or its TOML) as whose filter it begins; its dim is that of the lds and one
    )
    window: int = 4  # feedforward: previous words that it sees
    hidden: int = 0  # feedforward: units of its layers; 0: as many as `dim`
    factored: bool = False  # a state's embedding is half its class's, half its own
    characters: bool = False  # words have features of their spelling too
    depth: int = 1  # residual layers of each net; layers of the network
    net_dropout: float = 0.0
    kernel: str = "softmax"  # neural: p(z' | z) by softmax | normAbsLin | sigmoid | relu | rbf; all but softmax [K, K]
    spread: float = 0.2  # standard deviation of the embeddings at first
    precision: str = "bfloat16"  # of products while training on a GPU: bfloat16 | float32; evaluation is in float32
    # fhmm (params = "neural": words and states have embeddings of `dim` numbers):
    layers: int = 3  # chains, each with `states` states
    layer_states: str = ""  # or the states of each layer, as "20,10,5"
    bound: str = "tilted"  # on the log-likelihood: tilted | jensen
    combine: str = (
        "log-linear"  # what the layers say of a word: log-linear | noisy-or (small models, learner = gradient)
    )
    # tag-hmm (states = 0: one for each tag):
    hard_tags: bool = False  # a state keeps the one tag that it begins with
    rare: int = 2  # words seen at most so often teach what unseen words of their kind are like
    common: int = 5  # tokens that a kind of words needs
    backing: float = 0.0  # em: times that a word was seen more, in the states of its kind
    # lowrank (all of neural's too), lowrank-table:
    features: int = 256  # that transitions go through
    band: int = 0  # states around each that have weights of their own, added before rows are normalised
    feature_map: str = "learned"  # lowrank: learned | random | orthogonal | taylor (see trellis.params.features)
    temperature: float = 1.0  # lowrank: of the kernel exp(u . v / temperature)
    feature_dropout: float = 0.0  # fraction of the features that a step of training leaves out


@dataclass(frozen=True)
class BatchConfig:
    """How the text is cut into batches."""

    order: str = "streams"  # streams (contiguous, state carried) | sentences (shuffled) | documents (shuffled, carried)
    lanes: int = 128  # sequences side by side (streams, documents)
    window: int = 64  # steps per batch (streams, documents)
    tokens: int = 8192  # per batch (sentences)
    rotate: bool = False  # begin each epoch elsewhere in the text, read as a circle (streams)


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, how to learn, and what to keep; 0 switches a limit or a feature off."""

    epochs: int = 10
    max_steps: int = 0
    max_seconds: float = 0.0
    patience: int = 0  # evaluations without a better valid perplexity before stopping
    eval_every: int = 0  # steps; 0: after each epoch
    log_every: int = 50  # steps between lines of metrics.jsonl
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 300.0
    max_rise: float = 5.0  # nats per token above the lowest train loss that count as an explosion
    learner: str = "stepwise-em"  # gradient | em | stepwise-em; lds: em, or subspace (identification alone)
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip: float = 5.0  # largest gradient norm
    schedule: str = "constant"  # constant | cosine | plateau
    warmup: int = 0  # steps
    lr_floor: float = 0.0  # fraction of lr below which no schedule goes
    lr_factor: float = 0.5  # plateau: lr is multiplied by this ...
    lr_patience: int = 1  # ... after this many evaluations without improvement
    average: float = 0.0  # decay of the exponential average of the weights
    pseudocount: float = 1e-4  # em: added to every expected count of an epoch (stepwise: of a batch)
    em_power: float = 0.5  # stepwise-em: step k has rate (k + 2) ** -em_power
    sweeps: int = 4  # fhmm: over the layers, for each batch
    inner: str = (
        "auto"  # fhmm, stepwise-em: how emissions follow a batch: scaling (auto, but for neural) | adam | lbfgs
    )
    inner_steps: int = 0  # fhmm: of that for each batch, or of L-BFGS for each epoch (em); 0: 1 (lbfgs 5) or 100

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not value >= 0:
                raise TrellisError(f"train.{name} is {value}: it cannot be negative.")
        for name in ("beta1", "beta2", "average"):
            if getattr(self, name) >= 1:
                raise TrellisError(f"train.{name} is {getattr(self, name)}: it must be below 1.")
        if not (self.epochs or self.max_steps or self.max_seconds or self.patience):
            raise TrellisError("Training would never end: set train.epochs, max_steps, max_seconds or patience.")

    def total_steps(self, steps_per_epoch: int) -> int:
        """The most steps that `epochs` and `max_steps` allow; 0 where neither is set."""
        return min((limit for limit in (self.epochs * steps_per_epoch, self.max_steps) if limit), default=0)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    batches: BatchConfig = BatchConfig()
    train: TrainConfig = TrainConfig()
    seed: int = 0
    device: str = "auto"  # auto | cpu | cuda


def load_config(path: str | Path) -> RunConfig:
    """Read a run from a TOML file; what the file leaves out keeps its default."""
    return read_config(path, RunConfig)


def read_config(path: str | Path, kind: type[T]) -> T:
    """Read what a dataclass describes from a TOML file."""
    try:
        return build(kind, tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise TrellisError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except (TrellisError, ValueError) as error:
        raise TrellisError(f"{path}: {error}") from error


def apply_overrides(config: T, overrides: Iterable[str]) -> T:
    """The same run with some values replaced, each given as "section.key=value"."""
    tables: dict[str, Any] = asdict(cast(Any, config))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise TrellisError(f"Override {override!r} has no '='; write it as section.key=value.")
        *sections, last = key.strip().split(".")
        table: Any = tables
        for section in sections:
            table = table.setdefault(section, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise TrellisError(f"Override {override!r} does not name a section and a key.")
        table[last] = _toml_value(text, _type_of(type(config), [*sections, last]))
    return build(type(config), tables)


def to_toml(config: RunConfig) -> str:
    """The run as TOML text that `load_config` reads back to an equal value."""
    tables = asdict(config, dict_factory=lambda items: {key: value for key, value in items if value is not None})
    lines = [f"{key} = {_as_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for section, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_as_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    choices = list(known)
    nearest = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(choices)}."


def choose(options: Mapping[str, T], name: str, what: str) -> T:
    """The option of that name; one sentence about which there are where it is not one of them."""
    if name not in options:
        raise TrellisError(f"{what} is {name!r}, which is not known{suggestion(name, options)}")
    return options[name]


def build(cls: type[T], table: Any, where: str = "") -> T:
    """An instance of a config dataclass from a table, every key and every type checked."""
    if not isinstance(table, Mapping):
        raise TrellisError(f"{where.rstrip('.')} must be a table, not {table!r}.")
    types = get_type_hints(cls)
    for key in table:
        if key not in types:
            raise TrellisError(f"Unknown key {where + key!r}{suggestion(key, types)}")
    return cls(**{key: _checked(types[key], value, where + key) for key, value in table.items()})


def _checked(kind: Any, value: Any, where: str) -> Any:
    """The value as the type that a field asks for; an integer will do for a float, and nothing else is converted."""
    if get_args(kind):  # an optional field: X | None
        return None if value is None else _checked(get_args(kind)[0], value, where)
    if is_dataclass(kind):
        return build(cast(type, kind), value, where + ".")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TrellisError(f"{where} must be {TYPE_NAMES[kind]}, not {value!r}.")
    return value


def _type_of(kind: Any, path: list[str]) -> Any:
    """The type of the field of a dataclass that a path of keys leads to; None where it leads nowhere."""
    for key in path:
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    return kind


def _toml_value(text: str, kind: Any) -> Any:
    """A value written on the command line, in TOML; what is to be a string, or is not TOML, stays a string."""
    if str in (kind, *get_args(kind)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _as_toml(value: str | float | bool) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
