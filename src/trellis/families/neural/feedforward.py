"""The feed-forward language model: a window of previous words, hidden layers, and a softmax over the next word."""

from itertools import chain, pairwise, repeat
from typing import Any, ClassVar

from torch import Tensor, nn

from trellis.corpus import Vocabulary
from trellis.families.neural.base import NeuralModel, State, at_least_one


class FeedForward(NeuralModel):
    """A feed-forward language model: p(x_t | x_<t) = softmax(E f_t + b), where f_t depends on the last n words.

    f_t = g_depth(... g_1([e(x_{t-n}); ...; e(x_{t-1})])). Here e(x) is the embedding of a word, and each g is a hidden
    layer. If the hidden layers do not have d units, a final linear layer projects back to d.

    Parameters
    ----------
    vocab
        The words of the model.
    dim
        The size d of embeddings and layers.
    depth
        The number of hidden layers.
    dropout
        The dropout rate.
    window
        The number n of preceding words.
    tied
        Whether the output layer shares the embeddings.
    hidden
        The number of hidden units; 0: d.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="feedforward", dim=4, window=2, epochs=1).model
    >>> model.embed("a b").shape
    (2, 4)
    """

    family: ClassVar[str] = "feedforward"

    def __init__(
        self, vocab: Vocabulary, dim: int, depth: int = 2, dropout: float = 0.0, window: int = 4, tied: bool = True,
        hidden: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(vocab, dim, dropout, tied)
        at_least_one(depth=depth, window=window)
        widths = chain([window * dim], repeat(hidden or dim, depth))
        layers = [
            nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.LayerNorm(after), nn.Dropout(dropout))
            for before, after in pairwise(widths)
        ]
        self.drop, self.layers = nn.Dropout(dropout), nn.Sequential(*layers)
        self.back = nn.Identity() if hidden in (0, dim) else nn.Linear(hidden, dim)  # to the embedding size
        self.window, self.hidden = window, hidden

    def read(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        embedded = self.drop(nn.functional.embedding(words, self.embedding))
        windows = embedded.unfold(1, self.window, 1).flatten(2)  # [B, T, d * window]
        return self.back(self.layers(windows)), {}

    def settings(self) -> dict[str, Any]:
        sizes = {"dim": self.dim, "depth": len(self.layers), "window": self.window, "hidden": self.hidden}
        return {**sizes, "dropout": self.dropout, "tied": self.tied}
