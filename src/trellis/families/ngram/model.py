"""n-gram language models of any order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from trellis.corpus import Split, Vocabulary
from trellis.errors import TrellisError
from trellis.families.ngram.kneser_ney import count_ngrams, largest_sum, smooth
from trellis.families.ngram.sampling import Sampler, sample_tokens
from trellis.families.ngram.trie import NONE, Trie
from trellis.models.base import LanguageModel, Saved
from trellis.models.restoring import NORMALISED, check_finite, check_shapes

NAMES = {1: "unigram", 2: "bigram"}


class NGram(LanguageModel):
    """An n-gram model with backoff. The probability of word x depends on its context c, the last n - 1 words.

    log p(x | c) is stored for every n-gram seen in training. For others, it is backoff(c) + log p(x | c'), where c' is
    c without its first word. (backoff(c) is zero if c was never seen.) A new text is scored as if preceded by <eos>.

    Parameters
    ----------
    vocab
        The words of the model.
    trie
        The n-grams.
    log_probs
        log p(x | c) of each n-gram.
    backoffs
        backoff(c) of each n-gram below the highest order.
    cross_sentences
        Whether contexts cross sentences.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="ngram", order=3).model
    >>> model.predict("a", n=1)[0][0]
    'b'
    """

    family: ClassVar[str] = "ngram"

    def __init__(
        self, vocab: Vocabulary, trie: Trie, log_probs: Tensor, backoffs: Tensor, cross_sentences: bool
    ) -> None:
        self.vocab, self.trie, self.cross_sentences = vocab, trie, cross_sentences
        self.log_probs = log_probs  # [N] of every node of the trie
        self.backoffs = backoffs  # [N of the orders below the highest]

    @classmethod
    def fit(cls, vocab: Vocabulary, split: Split, order: int = 5, cross_sentences: bool = False) -> NGram:
        """Fit by interpolated modified Kneser-Ney. With `cross_sentences`, contexts cross sentence boundaries."""
        trie, counts = count_ngrams(vocab, split, order, cross_sentences)
        log_probs, backoffs = map(torch.from_numpy, smooth(trie, counts))
        return cls(vocab, trie, log_probs, backoffs, cross_sentences)

    @property
    def order(self) -> int:
        return len(self.trie.sizes)

    @property
    def name(self) -> str:
        return NAMES.get(self.order, f"{self.order}-gram")

    def start(self, batch: int) -> Tensor:
        state = torch.full((batch, self.order - 1), NONE, device=self.device)
        state[:, -1:] = self.vocab.eos
        return state

    def reset(self, state: Tensor, where: Tensor) -> Tensor:
        return torch.where(where[:, None], self.start(len(where)), state[: len(where)])

    def score(self, tokens: Tensor, state: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.check(tokens)
        context, text = self.order - 1, torch.cat([state, tokens], 1)
        log_probs = self.log_probs[tokens]
        for shorter, longer in pairwise(self.trie.walk(text)):
            before, node = shorter[:, context - 1 : -1], longer[:, context:]
            lower = log_probs + self.backoff(before)
            log_probs = torch.where(node >= 0, self.log_probs[node], lower)
        ends = tokens.new_full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        last = text.gather(1, ends[:, None] + torch.arange(context, device=text.device))
        return inside(log_probs, lengths), last

    def check(self, tokens: Tensor) -> None:
        """Raise if a token is outside the vocabulary."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.vocab):
            raise TrellisError(
                f"An n-gram model scores only the {len(self.vocab):,} words of its vocabulary, without gaps; encode "
                "the text with that vocabulary."
            )

    def forecast(self, state: Tensor) -> Tensor:
        log_probs = self.log_probs[: len(self.vocab)].repeat(len(state), 1)
        for before in self.trie.walk(state)[: self.order - 1]:
            node = before[:, -1]
            log_probs += self.backoff(node)[:, None]
            row, word, child = self.trie.children(node)
            log_probs[row, word] = self.log_probs[child]
        return log_probs

    def sample_tokens(self, n: int, max_tokens: int, seed: int) -> Tensor:
        many = n * len(self.vocab) > len(self.log_probs)  # then it pays to prepare the sampler
        sampler = Sampler.of(self) if many else None
        if sampler is None:
            return super().sample_tokens(n, max_tokens, seed)
        return sample_tokens(self, sampler, n, max_tokens, seed)

    def backoff(self, nodes: Tensor) -> Tensor:
        """The log backoff weights of contexts."""
        return torch.where(nodes >= 0, self.backoffs[nodes], 0.0)

    def settings(self) -> dict[str, Any]:
        return {"ngrams": list(self.trie.sizes), "cross_sentences": self.cross_sentences}

    def tensors(self) -> dict[str, Tensor]:
        return {"keys": self.trie.keys, "log_probs": self.log_probs, "backoffs": self.backoffs}

    def to(self, device: str | torch.device) -> NGram:
        """Move the model to another device."""
        return self.restore(
            Saved(self.vocab, self.settings(), {name: t.to(device) for name, t in self.tensors().items()})
        )

    @classmethod
    def check_saved(cls, saved: Saved) -> None:
        tensors, sizes = saved.tensors, saved.settings["ngrams"]
        words, total = len(saved.vocab), sum(sizes)
        shapes = {"keys": (total - words,), "log_probs": (total,), "backoffs": (total - sizes[-1],)}
        check_shapes(shapes, tensors)
        if sizes[0] != words or min(sizes) < 0:
            raise ValueError("the number of n-grams does not match the vocabulary")
        trie = Trie(tuple(sizes), tensors["keys"])
        trie.check()
        check_finite({"backoffs": tensors["backoffs"]})
        if not bool((tensors["log_probs"] <= 0).all()):
            raise ValueError("a log-probability is above zero or NaN")
        most = largest_sum(trie, tensors["log_probs"].double().numpy(), tensors["backoffs"].double().numpy())
        if not most <= 1 + NORMALISED:
            raise ValueError(f"the probabilities of the words after a context sum to {most:g}")

    @classmethod
    def restore(cls, saved: Saved) -> NGram:
        vocab, settings, tensors, _ = saved
        trie = Trie(tuple(settings["ngrams"]), tensors["keys"])
        return cls(vocab, trie, tensors["log_probs"], tensors["backoffs"], settings["cross_sentences"])


def inside(log_probs: Tensor, lengths: Tensor | None) -> Tensor:
    """Zero the padding: [B, T]."""
    if lengths is None:
        return log_probs
    return log_probs.masked_fill(torch.arange(log_probs.shape[1], device=lengths.device) >= lengths[:, None], 0.0)
