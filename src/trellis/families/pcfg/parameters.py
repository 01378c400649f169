"""Parameterisations of a grammar: tables of logits, or nets over embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from trellis.dirichlet import most_probable
from trellis.emissions import Partition
from trellis.families.hmm.parameters.base import normalised
from trellis.families.hmm.parameters.nets import Residual
from trellis.families.hmm.parameters.table import set_log
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.words import WORD_PARAMS
from trellis.kernels.rows import pick
from trellis.learning.base import Maximisable
from trellis.options import choose
from trellis.parts import Prior
from trellis.types import Counts


class Size(NamedTuple):
    """The sizes of a grammar. Rank 0 means a simple grammar."""

    words: int
    eos: int
    nonterminals: int
    preterminals: int
    rank: int = 0

    @property
    def symbols(self) -> int:
        return self.nonterminals + self.preterminals

    @property
    def ranks(self) -> int:
        return self.rank or self.nonterminals


class Kept(NamedTuple):
    """The symbols to which a grammar is restricted by dropout, ascending; None: all."""

    nonterminals: Tensor | None = None
    preterminals: Tensor | None = None  # only if every preterminal can emit every word

    def symbols(self, size: Size) -> Tensor | None:
        """The symbols and, at the end, the root that is nothing."""
        given = next((ids for ids in self if ids is not None), None)
        if given is None:
            return None
        every = torch.arange(size.symbols + 1, device=given.device).split([size.nonterminals, size.preterminals, 1])
        first, second = (all_ if ids is None else all_[ids] for ids, all_ in zip(self, every, strict=False))
        return torch.cat([first, second, every[2]])


ALL = Kept()


def picked(values: Tensor, index: Tensor | None) -> Tensor:
    """The rows with these indices; None: all."""
    return values if index is None else pick(values, index)


class Logits(NamedTuple):
    """Logits of a grammar's probabilities."""

    root: Tensor  # [N + P + 1]
    ranks: Tensor | None  # [N, R], over r
    lefts: Tensor  # [N + P, R], over symbols
    rights: Tensor  # [N + P, R], over symbols
    words: Tensor  # [V, k], over words: of all preterminals, or those of the word's class


class GrammarParams(nn.Module, ABC):
    """The parameters of a grammar."""

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()  # options besides the size

    def __init__(self, size: Size, partition: Partition | None) -> None:
        super().__init__()
        self.size, self.partition = size, partition

    @abstractmethod
    def logits(self, kept: Kept = ALL) -> Logits:
        """The logits of all probabilities, or of those among the symbols kept."""

    @abstractmethod
    def shift_word_logits(self, scores: Tensor) -> None:
        """Add scores [V] to the logits of the words of every preterminal."""

    def options(self) -> dict[str, Any]:
        """The values of `keys`, arguments of the constructor."""
        return {key: getattr(self, key) for key in self.keys}

    def grammar(self, kept: Kept = ALL) -> Grammar:
        """The grammar, or that of the symbols kept."""
        root, ranks, lefts, rights, words = self.logits(kept)
        preterminals = self.size.preterminals if kept.preterminals is None else len(kept.preterminals)
        eos = torch.arange(len(words), device=words.device)[:, None] == self.size.eos
        emission = normalised(words.masked_fill(eos, -torch.inf), self.partition, preterminals)
        ranks = None if ranks is None else ranks.softmax(-1)
        return Grammar(root.softmax(0), ranks, over_rows(lefts).exp(), over_rows(rights).exp(), emission)


def over_rows(logits: Tensor) -> Tensor:
    """log softmax over the rows of a matrix."""
    return logits - logits.logsumexp(0)  # torch's softmax over columns is slow


class TableParams(GrammarParams, Maximisable):
    """One logit per probability; EM or gradient."""

    kind = "table"

    def __init__(self, size: Size, partition: Partition | None = None, seed: int = 0) -> None:
        super().__init__(size, partition)
        generator = torch.Generator().manual_seed(seed)

        def logits(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator))

        self.root_logits = logits(size.symbols + 1)
        self.rank_logits = logits(size.nonterminals, size.rank) if size.rank else None
        self.left_logits = logits(size.symbols, size.ranks)
        self.right_logits = logits(size.symbols, size.ranks)
        self.word_logits = logits(size.words, partition.live if partition else size.preterminals)

    def logits(self, kept: Kept = ALL) -> Logits:
        symbols = kept.symbols(self.size)
        lefts, rights = (
            picked(one, None if symbols is None else symbols[:-1]) for one in (self.left_logits, self.right_logits)
        )
        if self.rank_logits is None and kept.nonterminals is not None:
            lefts, rights = lefts[:, kept.nonterminals], rights[:, kept.nonterminals]
        ranks = None if self.rank_logits is None else picked(self.rank_logits, kept.nonterminals)
        words = self.word_logits if kept.preterminals is None else self.word_logits[:, kept.preterminals]
        return Logits(picked(self.root_logits, symbols), ranks, lefts, rights, words)

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        self.word_logits.add_(scores.unsqueeze(-1))

    def parts(self) -> Any:
        return self.grammar()

    @torch.no_grad()
    def write(self, parts: Any) -> None:
        """Set the parameters to those of a grammar."""
        found = (parts.root, parts.ranks, parts.lefts, parts.rights, parts.emission.table.exp())
        for logits, probs in zip(self.logits(), found, strict=True):
            if logits is not None:
                set_log(logits, probs)

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        """The M-step: relative frequencies of the expected counts (`expected_counts`)."""
        old = self.grammar()
        tables = [one for one in (old.ranks, old.lefts, old.rights) if one is not None]
        pieces = counts.transition.split([one.numel() for one in tables])
        over = [-1, 0, 0][-len(tables) :]
        rules = [
            most_probable(piece.view_as(one), prior.transition or 0.0, one, dim)
            for piece, one, dim in zip(pieces, tables, over, strict=True)
        ]
        ranks = rules[0] if len(rules) == 3 else None
        root = most_probable(counts.start, prior.start or 0.0, old.root)
        emission = old.emission.maximised(counts.emission, prior.emission)
        self.write(Grammar(root, ranks, rules[-2], rules[-1], emission))


class NeuralParams(GrammarParams):
    """Residual nets f over embeddings e of symbols and ranks, with output embeddings a:

        root ∝ exp(f(e_root) . a_A)    u_Ar ∝ exp(f(e_A) . a_r)    v_Br ∝ exp(f(e_r) . a_B)    likewise w
        p(x | T) ∝ exp(f(e_T) . a_x + b_x), or a table
    In a simple grammar the embeddings of ranks are those of nonterminals."""

    kind = "neural"
    keys = ("dim", "depth", "net_dropout", "word_params")

    def __init__(
        self, size: Size, partition: Partition | None = None, dim: int = 256, depth: int = 1, net_dropout: float = 0.0,
        word_params: str = "neural", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(size, partition)
        self.dim, self.depth, self.net_dropout, self.word_params = dim, depth, net_dropout, word_params
        names = ("root", "left", "right", *["rank"] * bool(size.rank))

        def vectors(count: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(count, dim) / dim**0.5)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.symbols, self.outputs = vectors(size.symbols), vectors(size.symbols + 1)  # the last: no root
            self.ranks, self.rank_outputs = (vectors(size.rank) if size.rank else None for _ in range(2))
            self.root = vectors(1)
            self.nets = nn.ModuleDict({name: Residual(dim, depth, net_dropout) for name in names})
            kind = choose(WORD_PARAMS, word_params, "model.word_params")
            self.words = kind(size.words, size.preterminals, partition, dim, depth, net_dropout)

    def logits(self, kept: Kept = ALL) -> Logits:
        symbols, ids = self.symbols.split([self.size.nonterminals, self.size.preterminals]), kept.symbols(self.size)
        nonterminals, preterminals = (picked(one, chosen) for one, chosen in zip(symbols, kept, strict=True))
        outputs, ranks = picked(self.outputs, ids), nonterminals if self.ranks is None else self.ranks
        left, right = (outputs[:-1] @ self.nets[name](ranks).T for name in ("left", "right"))
        chosen = None if self.rank_outputs is None else self.nets["rank"](nonterminals) @ self.rank_outputs.T
        root = (self.nets["root"](self.root) @ outputs.T)[0]
        return Logits(root, chosen, left, right, self.words(preterminals, kept.preterminals))

    def shift_word_logits(self, scores: Tensor) -> None:
        self.words.shift(scores)
