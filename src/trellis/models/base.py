"""The interface of all models, and the queries of language models on tokens and text."""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from trellis.corpus import Split, Vocabulary
from trellis.devices import check_integer, check_memory, draw_uniform, seeded, usable
from trellis.errors import TrellisError, printable
from trellis.models.restoring import check_finite
from trellis.models.text import Text, in_batches, rows_of, sentences_of
from trellis.registry import resolve
from trellis.storage import as_path
from trellis.transitions.base import invert

if TYPE_CHECKING:
    from trellis.constraints import Constraint
    from trellis.models.conditioned import Conditioned

T = TypeVar("T")
DRAWN = 24  # bytes per sampled token: a uniform number, a state and a word
Ranked = list[tuple[str, float]]  # words with their probabilities, most probable first
Embedding = Callable[[Any, Tensor, Tensor | None], Tensor]  # (model, tokens [B, T], lengths [B]) -> [B, T, D]
PROBABILITIES = "assigns no probabilities to words", "language models"  # what a model lacks, and which models have it
STATES = "has no hidden states", "HMMs and factorial HMMs"
CHAIN = "has no hidden states in a single chain", "HMMs"
EITHER = "has no hidden states in a single chain and no trees", "HMMs and grammars"
VECTORS = "has no hidden states or word vectors", "models with either"


class Path(NamedTuple):
    """The most probable hidden states of a sentence."""

    states: np.ndarray  # [T]; with M layers of states, [T, M]
    log_prob: float  # log p(states, words), including <eos>; for mean-field inference, the lower bound on log p(words)


class Infilled(NamedTuple):
    """A sentence with its gaps filled."""

    gaps: list[Ranked]  # for each gap, its most probable words given all observed words
    best: str  # the sentence with the jointly most probable words in its gaps
    samples: list[str]  # sampled jointly from the posterior
    log_prob: float  # log p(best), including <eos> if the sentence is complete
    proved: bool  # whether no other words are more probable; False: the search reached its limit


class StateSummary(NamedTuple):
    """A summary of one state: how often it occurs, its words and its successors."""

    state: int
    occupancy: float  # share of tokens
    telling: float  # nats: occupancy * KL(p(word | state) || p(word))
    words: Ranked
    next_states: list[tuple[int, float]]


class Picture(Protocol):
    """A drawing that notebooks show."""

    def _repr_svg_(self) -> str: ...

    def save(self, path: str | pathlib.Path) -> None:
        """Write an SVG file."""


class SequenceModel(ABC):
    """An autoregressive distribution over token sequences; `state` summarises the past."""

    vocab: Vocabulary

    @abstractmethod
    def start(self, batch: int) -> Any:
        """The initial state of `batch` sequences, before their first token."""

    @abstractmethod
    def reset(self, state: Any, where: Tensor) -> Any:
        """Restart the sequences for which the mask `where` [B] is true. Returns the state of the first B sequences."""

    @abstractmethod
    def score(self, tokens: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """The log-probability of each token [B, T] given its past (zero in the padding), and the state after them."""

    @abstractmethod
    def forecast(self, state: Any) -> Tensor:
        """log p(next token | past): [B, V]."""


class Saved(NamedTuple):
    """The contents of a saved model."""

    vocab: Vocabulary
    settings: Mapping[str, Any]
    tensors: dict[str, Tensor]  # on the CPU
    folder: pathlib.Path = pathlib.Path()  # the folder of the file


class PersistedModel(ABC):
    """A model of text that can be saved and loaded."""

    vocab: Vocabulary
    family: ClassVar[str]
    about: dict[str, Any] = {}  # noqa: RUF012  # corpus, data, order, scores: set as a whole by training and loading
    num_states: Any = None  # the number of hidden states, if any
    sizes: Any = ()  # states per layer, if any; `posterior` and `embed` concatenate the layers
    embed_kinds: ClassVar[Mapping[str, Embedding]] = {}  # the kinds of `embed`, default first

    @property
    def name(self) -> str:
        """The name to show in tables."""
        return self.family

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The JSON values that `restore` needs besides the vocabulary and the tensors."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save."""

    @classmethod
    def check_saved(cls, saved: Saved) -> None:
        """Raise ValueError if the contents of a file cannot be a model of this class; called before `restore`."""
        check_finite(saved.tensors)

    @classmethod
    @abstractmethod
    def restore(cls, saved: Saved) -> PersistedModel:
        """Rebuild the model from its saved contents."""

    def save(self, path: str | pathlib.Path, half: bool = False) -> None:
        """Save the model to a folder, or to a file whose name ends in .safetensors; `trellis.load` reads it.

        With `half=True`, numbers are stored as float16, which halves the size of the file. They are loaded as
        float32."""
        from trellis.models.files import FILE, save_model

        file = as_path(path)
        save_model(file if file.suffix == ".safetensors" else file / FILE, self, half=half)

    def save_beside(self, folder: pathlib.Path) -> None:  # noqa: B027
        """Write additional files next to the model file."""

    def finish(self, train: Split) -> None:  # noqa: B027
        """Estimate values that are not parameters, such as state occupancy. Called after training."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Any:
        """Move the model to another device."""

    @classmethod
    def described(cls) -> str:
        """A noun phrase for this type of model, for error messages."""
        return f"a model of the family {cls.family}"

    def __repr__(self) -> str:
        facts = [f"{self.num_states:,} states"] if self.num_states else []
        facts += [f"{len(self.vocab):,} words"]
        corpus = f", trained on {printable(self.about['corpus'].split(':')[0])}" if "corpus" in self.about else ""
        return f"<{type(self).__name__} ({self.family}): {', '.join(facts)}{corpus}>"

    def _repr_html_(self) -> str:
        facts = {"family": self.name, "states": self.num_states, "parameters": self.num_parameters()}
        facts |= {"words": len(self.vocab), "corpus": self.about.get("corpus"), **self.about.get("scores", {})}
        formats = {float: "{:,.6g}", int: "{:,}"}
        shown = {name: formats.get(type(value), "{}").format(value) for name, value in facts.items() if value}
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in shown.items())
        return f"<table>{''.join(cells)}</table>"

    @property
    def device(self) -> torch.device:
        return usable(next(iter(self.tensors().values())).device)

    def num_parameters(self) -> int:
        """The number of learned parameters."""
        return sum(t.numel() for t in self.tensors().values() if t.is_floating_point())

    @property
    def width(self) -> int:
        """An upper bound on the number of values that inference stores per token."""
        return max(len(self.vocab), self.num_states or 1)

    def encode_words(self, words: Sequence[str]) -> np.ndarray:
        """Encode words as ids."""
        return self.vocab.encode(words)

    def encode_line(self, text: Text, eos: bool = False, gap: str | None = None) -> Tensor:
        """Encode one sentence as a token row [1, T]."""
        given = sentences_of(self, text, gap).sentences
        if len(given) != 1:
            raise TrellisError(f"Pass one sentence, not {len(given)}.")
        ids = given[0]
        if not ids.size:
            raise TrellisError("The text is empty; pass at least one word.")
        return torch.tensor([[*ids, *[self.vocab.eos] * eos]], device=self.device)

    def refusal(self, verb: str, lacks: str, which: str) -> TrellisError:
        """The error for a query that this model does not support."""
        return TrellisError(f"This {self.name} model {lacks}: {verb}() is for {which}.")

    def log_prob(self, text: Text) -> float | np.ndarray:
        """log p(sentence), including <eos>; for a list of n sentences, an array [n].

        Each line of a string is a sentence; the result is the sum over its lines.

        >>> model = trellis.train(["a b", "b a"] * 20, family="bigram").model
        >>> model.log_prob(["a b", "a a a a"]) > -5
        array([ True, False])
        """
        raise self.refusal("log_prob", *PROBABILITIES)

    def token_log_probs(self, text: Text) -> np.ndarray | list[np.ndarray]:
        """The log-probability of each of T tokens, and of <eos> after them, given all preceding tokens: [T + 1].

        >>> model = trellis.train(["a b", "b a"] * 20, family="bigram").model
        >>> model.token_log_probs("a b").shape
        (3,)
        """
        raise self.refusal("token_log_probs", *PROBABILITIES)

    def predict(self, text: Text = "", n: int = 10) -> Ranked | list[Ranked]:
        """The n most probable next words of a sentence that begins with `text`, with their probabilities.

        >>> trellis.train(["a b", "a b c"] * 20, family="bigram").model.predict("a", n=1)[0][0]
        'b'
        """
        raise self.refusal("predict", *PROBABILITIES)

    def sample(self, n: int = 1, max_tokens: int = 100, seed: int = 0) -> list[str]:
        """Sample n sentences. A sentence ends at <eos>, or after `max_tokens` tokens.

        >>> len(trellis.train(["a b", "b a"] * 20, family="bigram").model.sample(3))
        3
        """
        raise self.refusal("sample", *PROBABILITIES)

    def posterior(self, text: Text, complete: bool = True) -> np.ndarray | list[np.ndarray]:
        """The posterior p(state | sentence) at each of T words, [T, number of states].

        The layers of a factorial HMM are concatenated.

        By default the sentence is complete, and <eos> follows it. With `complete=False` it may continue.

        >>> trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model.posterior("a b b").shape
        (3, 4)
        """
        raise self.refusal("posterior", *STATES)

    def viterbi(self, text: Text, complete: bool = True) -> Path | list[Path]:
        """The most probable sequence of states of a sentence (the Viterbi path), and log p(path, words).

        By default the sentence is complete, and <eos> follows it. With `complete=False` it may continue.

        >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
        >>> [len(path.states) for path in model.viterbi(["a b", "a b b"])]
        [2, 3]
        """
        raise self.refusal("viterbi", *STATES)

    def infill(
        self, text: Text, n: int = 10, samples: int = 3, seed: int = 0, complete: bool = False
    ) -> Infilled | list[Infilled]:
        """Fill the gaps of a sentence: the n most probable words of each gap, and sampled completions of the sentence.

        A gap is written as ___ in text, or -1 in an array of ids. It stands for one word, never for <eos>. By default
        the sentence may continue after its last word; with `complete=True`, <eos> follows.

        >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
        >>> [len(ranked) for ranked in model.infill("a ___ b ___", n=2).gaps]
        [2, 2]
        """
        raise self.refusal("infill", *EITHER)

    def constrain(
        self, constraint: Constraint, least: int = 0, most: int | None = None, complete: bool = True
    ) -> Conditioned:
        """The distribution over the sentences of `least` to `most` words that satisfy a constraint.

        The default of `most` is 100. With `complete=False`, a text is a stream of exactly `most` tokens, in which <eos>
        is a token like any other.

        >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
        >>> ends_in_a = model.constrain(trellis.constraints.ends("a"), most=20)
        >>> {sentence[-1] for sentence in ends_in_a.sample(10)}
        {'a'}
        """
        raise self.refusal("constrain", *EITHER)

    def states(self, n: int = 10, words: int = 8) -> list[StateSummary]:
        """The n most informative states, with their most probable words and successor states.

        >>> len(trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model.states(2))
        2
        """
        raise self.refusal("states", *CHAIN)

    def draw(self, text: Text) -> Picture:
        """Draw the trellis of a sentence: posteriors of states and transitions, and the Viterbi path.

        Notebooks display the result; its method `save` writes an SVG file.

        >>> drawn = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model.draw("a b")
        >>> drawn.words
        ['a', 'b', '<eos>']
        """
        raise self.refusal("draw", *CHAIN)

    def explore(self, other: PersistedModel | None = None) -> Any:
        """A notebook widget with the views of `trellis explore`. It needs anywidget.

        `other` is a second model, to compare with this one.

        >>> shown = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model.explore()  # doctest: +SKIP
        """
        return resolve("trellis.explore.widget:widget")(self, other)

    @torch.no_grad()
    def embed(self, text: Text, kind: str | None = None, complete: bool = True) -> np.ndarray | list[np.ndarray]:
        """A float32 feature vector of D numbers for each of T words, [T, D].

        `kind` is one of the model's `embed_kinds`; the default is the first. By default the sentence is complete, and
        <eos> follows it. With `complete=False` it may continue.

        >>> trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model.embed("a b b", "viterbi").sum(1)
        array([1., 1., 1.], dtype=float32)
        """
        if not self.embed_kinds:
            raise self.refusal("embed", *VECTORS)
        chosen = next(iter(self.embed_kinds)) if kind is None else kind
        if chosen not in self.embed_kinds:
            raise TrellisError(f"This {self.name} has no {kind!r} features; it has {', '.join(self.embed_kinds)}.")
        compute = self.embed_kinds[chosen]
        return rows_of(self, text, lambda tokens, lengths: compute(self, tokens, lengths).float(), complete)

    def embed_rows(self, text: Text, kind: str | None = None, top: int = 0) -> list[dict[str, Any]]:
        """The features of `embed` as a list of dicts, one for each token; `pandas.DataFrame(rows)` makes a data frame.

        With `top`, there is one dict for each of the `top` most probable states of a token. The keys are:

        - `sentence`, `number`: the number of the sentence, and of the token within it, from 1;
        - `token`, `start`, `end`: the token, and its character offsets in the text;
        - `vector`; with `top`, `state` and `probability`, also `layer` if there are several layers, and `rank` if `top`
          is larger than 1.

        >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
        >>> [(row["token"], row["start"], row["end"]) for row in model.embed_rows("a  b", top=1)]
        [('a', 0, 1), ('b', 3, 4)]
        """
        from trellis.models.reading import as_sentences, check_top, token_rows

        check_top(self, top)
        return list(token_rows(self, list(as_sentences(self, text)), kind, top))


class LanguageModel(SequenceModel, PersistedModel):
    """A SequenceModel with queries on text."""

    def sentence_start(self, batch: int) -> Any:
        """The state at the beginning of a sentence."""
        return self.start(batch)

    @classmethod
    def described(cls) -> str:
        return super().described() if cls is not LanguageModel else "a language model: words have no probabilities"

    @torch.no_grad()
    def token_log_probs(self, text: Text) -> np.ndarray | list[np.ndarray]:
        given = sentences_of(self, text)

        def score(tokens: Tensor, lengths: Tensor) -> Iterable[np.ndarray]:
            rows = self.score(tokens, self.sentence_start(len(tokens)), lengths)[0].clamp(max=0).cpu().numpy()
            if np.isnan(rows).any():
                raise TrellisError("The probabilities are not numbers: a parameter of the model is too large.")
            return (row[:length] for row, length in zip(rows, lengths.tolist(), strict=True))

        return given.answer(in_batches(self, given, score, end=True))

    def log_prob(self, text: Text) -> float | np.ndarray:
        if isinstance(text, str):
            return float(np.sum(self.log_prob(text.removesuffix("\n").split("\n"))))
        found = self.token_log_probs(text)
        if isinstance(found, list):
            return np.array([row.sum(dtype=np.float64) for row in found], np.float64)
        return float(found.sum(dtype=np.float64))

    @torch.no_grad()
    def predict(self, text: Text = "", n: int = 10) -> Ranked | list[Ranked]:
        given, n = sentences_of(self, text), check_integer(n, "number of words", least=0)

        def rank(tokens: Tensor, lengths: Tensor) -> Iterable[Ranked]:
            state = self.sentence_start(len(tokens))
            if tokens.numel():
                _, state = self.score(tokens, state, lengths)
            return (self.rank(log_probs, n) for log_probs in self.forecast(state))

        return given.answer(in_batches(self, given, rank))

    def sample(self, n: int = 1, max_tokens: int = 100, seed: int = 0) -> list[str]:
        check_sizes(n, max_tokens)
        return self.sentences(self.sample_tokens(n, max_tokens, seed))

    @torch.no_grad()
    def sample_tokens(self, n: int, max_tokens: int, seed: int) -> Tensor:
        """The tokens of n sampled sentences, [n, T] with T <= max_tokens. Tokens after the first <eos> of a row are not
        part of the sentence."""
        generator = seeded(seed)
        state, drawn = self.sentence_start(n), []
        for _ in range(max_tokens):
            tokens = invert(self.forecast(state).exp(), draw_uniform((n,), self.device, generator)).unsqueeze(-1)
            _, state = self.score(tokens, state)
            drawn.append(tokens)
            if bool((torch.cat(drawn, 1) == self.vocab.eos).any(1).all()):
                break
        return torch.cat(drawn, 1)

    def sentences(self, tokens: Tensor) -> list[str]:
        """Decode token rows [B, T] to text, each up to its first <eos>."""
        rows = (row[: row.index(self.vocab.eos)] if self.vocab.eos in row else row for row in tokens.tolist())
        return [self.vocab.join(self.vocab.decode(row)) for row in rows]

    def rank(self, log_probs: Tensor, n: int) -> Ranked:
        """The n most probable words given log-probabilities [V]; words of probability zero are left out."""
        top = log_probs.topk(max(0, min(n, len(self.vocab))))
        words, probs = self.vocab.decode(top.indices.tolist()), top.values.exp().tolist()
        return [(word, prob) for word, prob in zip(words, probs, strict=True) if prob > 0]


def check_sizes(n: int, max_tokens: int) -> None:
    """Raise if there is nothing to sample, or more than fits into memory."""
    tokens = check_integer(n, "number of sentences") * check_integer(max_tokens, "number of tokens")
    what = f"Sampling {n:,} sentences of at most {max_tokens:,} tokens"
    check_memory(DRAWN * tokens, what, "sample fewer at a time, with another seed each time")


class Memo:
    """Memoises values computed from a module's parameters, except while gradients are recorded."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = module.parameters
        self.version: Any = None
        self.kept: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Drop the memo on pickling; it is recomputed on demand."""
        return {"parameters": self.parameters, "version": None, "kept": {}}

    def __call__(self, name: str, compute: Callable[[], T]) -> T:
        if torch.is_grad_enabled():
            return compute()
        version = tuple((p._version, p.data_ptr()) for p in self.parameters())
        if self.version != version:
            self.version, self.kept = version, {}
        kept = self.kept  # another thread may replace it
        if name not in kept:
            kept[name] = compute()
        return cast(T, kept[name])
