"""What every model can do, and what every language model answers: token by token, and in text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from trellis.corpus import Split, Vocabulary
from trellis.devices import draw_uniform
from trellis.errors import TrellisError
from trellis.transitions.base import invert

T = TypeVar("T")
Ranked = list[tuple[str, float]]  # words with their probabilities, best first


class SequenceModel(ABC):
    """A distribution over token sequences, one step at a time; `state` is all that it keeps of the past."""

    vocab: Vocabulary

    @abstractmethod
    def start(self, batch: int) -> Any:
        """The state before the first token of `batch` sequences."""

    @abstractmethod
    def reset(self, state: Any, where: Tensor) -> Any:
        """The state of the first B sequences, begun anew for those where [B] is true."""

    @abstractmethod
    def score(self, tokens: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """log p(x_t | past) [B, T] of tokens [B, T] (zero past the end), and the state after them."""

    @abstractmethod
    def forecast(self, state: Any) -> Tensor:
        """log p(next token | past): [B, V]."""


class Saved(NamedTuple):
    """What a model is restored from."""

    vocab: Vocabulary
    settings: Mapping[str, Any]
    tensors: dict[str, Tensor]  # on the CPU
    folder: Path = Path()  # of the file


class PersistedModel(ABC):
    """A model that reads text, and can be saved and loaded."""

    vocab: Vocabulary
    family: ClassVar[str]
    about: dict[str, Any] = {}  # noqa: RUF012  # corpus, data, order, scores: set as a whole, by training and by load
    num_states: Any = None  # how many, where the model has hidden states

    @property
    def name(self) -> str:
        """What to call it in a table."""
        return self.family

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments, JSON values all, that with a vocabulary and tensors make this model again."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The numbers to save."""

    @classmethod
    @abstractmethod
    def restore(cls, saved: Saved) -> PersistedModel:
        """The model that was saved."""

    def save_beside(self, folder: Path) -> None:  # noqa: B027
        """Write what does not go into the model's own file."""

    def finish(self, train: Split) -> None:  # noqa: B027
        """Training has ended: estimate what is needed besides the parameters."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Any:
        """The model on another device."""

    @classmethod
    def described(cls) -> str:
        """What is asked for where a model of this kind is."""
        return f"a model of the family {cls.family}"

    def __repr__(self) -> str:
        facts = [f"{self.num_states:,} states"] if self.num_states else []
        facts += [f"{len(self.vocab):,} words", *([str(self.about["corpus"])] if "corpus" in self.about else [])]
        return f"<{type(self).__name__} ({self.family}): {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        facts = {"family": self.name, "states": self.num_states, "parameters": self.num_parameters()}
        facts |= {"words": len(self.vocab), "corpus": self.about.get("corpus"), **self.about.get("scores", {})}
        shown = {name: f"{value:,.6g}" if isinstance(value, float) else value for name, value in facts.items()}
        cells = (
            f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in shown.items() if value
        )
        return f"<table>{''.join(cells)}</table>"

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    def num_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(t.numel() for t in self.tensors().values() if t.is_floating_point())

    def encode(self, text: str, eos: bool = True, gap: str | None = None) -> list[Tensor]:
        """The lines of a text as token rows [1, T]; a line without tokens is an error."""
        lines = self.vocab.encode_text(text, eos, gap)
        for number, ids in enumerate(lines, 1):
            if not len(ids):
                raise TrellisError(f"Line {number} of the text is empty: there is nothing to work on; give it a word.")
        return [torch.as_tensor(np.asarray(ids), dtype=torch.int64, device=self.device)[None] for ids in lines]

    def encode_line(self, text: str, eos: bool = False, gap: str | None = None) -> Tensor:
        """One line as a token row [1, T]."""
        rows = self.encode(text, eos, gap)
        if len(rows) != 1:
            raise TrellisError(f"The text has {len(rows)} lines; give one line.")
        return rows[0]


class LanguageModel(SequenceModel, PersistedModel):
    """The text face of a SequenceModel."""

    @classmethod
    def described(cls) -> str:
        return "a language model: it gives words no probabilities"

    def sentence_start(self, batch: int) -> Any:
        """The state in which a new sentence begins."""
        return self.start(batch)

    @torch.no_grad()
    def log_prob(self, text: str) -> float:
        """log p(text): each line is a sentence on its own, its end included."""
        total = 0.0
        for ids in self.encode(text):
            log_probs, _ = self.score(ids, self.sentence_start(1))
            total += float(log_probs.sum(dtype=torch.float64))
        return total

    @torch.no_grad()
    def predict(self, text: str = "", n: int = 10) -> Ranked:
        """The n most probable next words after the beginning of a sentence."""
        state = self.sentence_start(1)
        if text:
            _, state = self.score(self.encode_line(text), state)
        return self.rank(self.forecast(state)[0], n)

    @torch.no_grad()
    def sample(self, n: int = 1, max_tokens: int = 100, seed: int = 0) -> list[str]:
        """n sentences drawn from the model, each up to its end or max_tokens."""
        generator = torch.Generator().manual_seed(seed)
        state, drawn = self.sentence_start(n), []
        for _ in range(max_tokens):
            tokens = invert(self.forecast(state).exp(), draw_uniform((n,), self.device, generator)).unsqueeze(-1)
            _, state = self.score(tokens, state)
            drawn.append(tokens)
            if bool((torch.cat(drawn, 1) == self.vocab.eos).any(1).all()):
                break
        return self.sentences(torch.cat(drawn, 1))

    def sentences(self, tokens: Tensor) -> list[str]:
        """Rows of tokens [B, T] as text, each up to its first <eos>."""
        rows = (row[: row.index(self.vocab.eos)] if self.vocab.eos in row else row for row in tokens.tolist())
        return [self.vocab.join(self.vocab.decode(row)) for row in rows]

    def rank(self, log_probs: Tensor, n: int) -> Ranked:
        """The n best words of log-probabilities [V], fewer where fewer are possible."""
        top = log_probs.topk(max(0, min(n, len(self.vocab))))
        words, probs = self.vocab.decode(top.indices.tolist()), top.values.exp().tolist()
        return [(word, prob) for word, prob in zip(words, probs, strict=True) if prob > 0]


class Memo:
    """Memoises what was computed from a module's parameters; nothing while gradients are recorded."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = module.parameters
        self.version: Any = None
        self.kept: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: computed again where it is needed."""
        return {"parameters": self.parameters, "version": None, "kept": {}}

    def __call__(self, name: str, compute: Callable[[], T]) -> T:
        if torch.is_grad_enabled():
            return compute()
        version = tuple((p._version, p.data_ptr()) for p in self.parameters())
        if self.version != version:
            self.version, self.kept = version, {}
        if name not in self.kept:
            self.kept[name] = compute()
        return cast(T, self.kept[name])
