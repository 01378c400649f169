"""Neural language models: embeddings of the previous words, a network, and a softmax over the next word."""

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from trellis.corpus import Vocabulary
from trellis.devices import usable
from trellis.errors import TrellisError
from trellis.families.ngram.model import inside
from trellis.learning.base import GradientModel
from trellis.models.base import LanguageModel, Saved
from trellis.models.restoring import rebuilt
from trellis.types import Batch

LOGITS = 1 << 26  # logits in memory at a time
SPREAD = 0.1  # initial standard deviation of the embeddings

State = dict[str, Tensor]  # "words" [B, w], the latest ones, and the network's memory, [B, ...] each


class NeuralModel(GradientModel, LanguageModel):
    """p(x_t | x_<t) = softmax(E f_t + b): f_t [d] is a network's feature vector of the words before x_t.

    The rows of E [V, d] are also the input embeddings if `tied`. A text begins after <eos>."""

    __repr__ = LanguageModel.__repr__
    embed_kinds: ClassVar = {"type": lambda model, tokens, lengths: embedding(tokens, model.embedding)}
    window = 1  # previous words the network reads at each step

    def __init__(self, vocab: Vocabulary, dim: int, dropout: float, tied: bool = True, bias: bool = True) -> None:
        super().__init__()
        at_least_one(dim=dim)
        if not 0 <= dropout < 1:
            raise TrellisError(f"model.net_dropout is {dropout}: it must be at least 0 and below 1.")
        self.vocab, self.dim, self.dropout, self.tied = vocab, dim, dropout, tied
        frequency = torch.tensor(vocab.counts, dtype=torch.float32).add_(1.0).log_()
        self.embedding = nn.Parameter(SPREAD * torch.randn(len(vocab), dim))
        self.output = None if tied else nn.Parameter(SPREAD * torch.randn(len(vocab), dim))
        self.bias = nn.Parameter(frequency - frequency.mean()) if bias else None

    @property
    def device(self) -> torch.device:
        return usable(self.embedding.device)

    def memory(self, batch: int) -> State:
        """The initial memory of the network, besides the words."""
        return {}

    @abstractmethod
    def read(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Features f [B, T, d] of T steps from words [B, window - 1 + T], and the memory after them.

        If `lengths` is None, the memory of every row is taken after T steps."""

    def start(self, batch: int) -> State:
        words = torch.full((batch, self.window), self.vocab.eos, device=self.device)
        return {"words": words, **self.memory(batch)}

    def reset(self, state: State, where: Tensor) -> State:
        return choose_rows(where, self.start(len(where)), state)

    def score(self, tokens: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        if lengths is None or bool((lengths == tokens.shape[1]).all()):
            return self.score_window(tokens, state)
        words = torch.cat([state["words"], tokens], 1)
        features, memory = self.read(words[:, :-1], state, lengths)
        latest = words.gather(1, lengths[:, None] + torch.arange(self.window, device=words.device))
        after = choose_rows(lengths == 0, state, {"words": latest, **memory})
        return inside(self.log_probs(features, tokens), lengths), after

    def score_window(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Like `score`, for sequences of which none ends before the last step; does not synchronise with the device."""
        words = torch.cat([state["words"], tokens], 1)
        features, memory = self.read(words[:, :-1], state)
        return self.log_probs(features, tokens), {"words": words[:, tokens.shape[1] :], **memory}

    def log_likelihood(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """log p(batch), still on the device, and the state after it.

        The state of a sequence that ends within the batch is not kept; its row must be fresh in the next batch."""
        if state is None or len(state["words"]) < len(batch.tokens):
            state = self.start(len(batch.tokens))
        log_probs, after = self.score_window(batch.tokens, self.reset(state, batch.fresh))
        return inside(log_probs, batch.lengths).sum(dtype=torch.float64), after

    def forecast(self, state: State) -> Tensor:
        features, _ = self.read(state["words"], state)
        return self.logits(features[:, 0]).log_softmax(-1)

    def logits(self, features: Tensor) -> Tensor:
        return linear(features, self.embedding if self.output is None else self.output, self.bias)

    def log_probs(self, features: Tensor, tokens: Tensor) -> Tensor:
        """log p of tokens [B, T] given features [B, T, d], with a bounded number of logits in memory."""
        rows = max(1, LOGITS // len(self.vocab))
        pieces = zip(features.reshape(-1, self.dim).split(rows), tokens.reshape(-1).split(rows), strict=True)
        losses = [cross_entropy(self.logits(f), x, reduction="none") for f, x in pieces]
        return -torch.cat(losses).view_as(tokens)

    def state_to_tensors(self, state: State) -> State:
        return state

    def state_from_tensors(self, tensors: State) -> State:
        return tensors

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.state_dict().items()}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        vocab, settings, tensors, _ = saved
        return rebuilt(lambda: cls(vocab, **settings), tensors).eval()


def at_least_one(**sizes: int) -> None:
    """Raise if a size is not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise TrellisError(f"model.{name} is {size}: it must be at least 1.")


def choose_rows(where: Tensor, one: State, other: State) -> State:
    """The rows of `one` where the mask [B] is true, else those of `other` (which may have more)."""
    rows = {name: where.view(-1, *[1] * (value.dim() - 1)) for name, value in one.items()}
    return {name: torch.where(rows[name], value, other[name][: len(where)]) for name, value in one.items()}
