"""Parse sentences: trees with their words, as text, as data and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.pcfg.inside import log_likelihoods, log_words
from trellis.families.pcfg.queries import Posterior, posterior
from trellis.families.pcfg.trees import Logs, Node, Sampler, Splits, safest_splits, viterbi_splits
from trellis.models.base import check_integer
from trellis.options import choose
from trellis.report.format import SIGNS
from trellis.report.markup import SVG
from trellis.report.tree import draw_tree
from trellis.storage import write_text

if TYPE_CHECKING:
    from trellis.families.pcfg.model import PCFG

MARKS = str.maketrans({"(": "-LRB-", ")": "-RRB-", **SIGNS})  # for characters that would end a word of a tree


class Tree(NamedTuple):
    """The tree of a sentence; notebooks show it as a picture. Its string has brackets, as in "(N0 (P1 a) (P0 b))"."""

    words: Sequence[str]
    root: Node | None  # None: the empty sentence
    nonterminals: int  # number of symbols before the preterminals
    log_prob: float  # log p(tree, words)

    def name(self, symbol: int) -> str:
        """N0, N1, ... for nonterminals, P0, P1, ... for preterminals."""
        return f"N{symbol}" if symbol < self.nonterminals else f"P{symbol - self.nonterminals}"

    def nodes(self) -> list[Node]:
        """The constituents, parents first, from left to right."""
        return [] if self.root is None else list(self.root.nodes())

    def brackets(self) -> list[tuple[int, int]]:
        """The spans [start, stop) of two words or more."""
        return [(node.start, node.stop) for node in self.nodes() if node.children]

    def preterminals(self) -> np.ndarray:
        """The preterminal of each word."""
        return np.array([n.symbol - self.nonterminals for n in self.nodes() if not n.children], np.int64)

    def as_data(self) -> dict[str, Any]:
        """JSON values: the bracketed text and a list of constituents."""
        nodes = [{"symbol": self.name(n.symbol), "start": n.start, "stop": n.stop} for n in self.nodes()]
        return {"tree": str(self), "log_prob": self.log_prob, "constituents": nodes}

    def __str__(self) -> str:
        pieces: list[str] = []
        open_: list[int] = []
        for node in self.nodes():
            pieces.append(f"{' ' * bool(pieces)}({self.name(node.symbol)}")
            open_.append(node.stop)
            if not node.children:
                pieces.append(f" {self.words[node.start].translate(MARKS)}")
                while open_ and open_[-1] == node.stop:
                    open_.pop()
                    pieces.append(")")
        return "".join(pieces) or "()"

    def __repr__(self) -> str:
        return f"<Tree: {self}>"

    def _repr_svg_(self) -> str:
        return self.picture(**SVG)

    def picture(self, **look: object) -> Any:
        """The drawing, with attributes of its SVG element."""
        nodes = [(n.start, n.stop, self.name(n.symbol)) for n in self.nodes()]
        return draw_tree(self.words, nodes, **look)

    def save(self, path: str | Path) -> None:
        """Write the picture as an SVG file."""
        if Path(path).suffix != ".svg":
            raise TrellisError(f"Cannot write {path}: pictures are SVG; use a name that ends in .svg.")
        write_text(path, f"{self._repr_svg_()}\n")


class Given(NamedTuple):
    """Sentences to parse."""

    model: PCFG
    tokens: Tensor
    lengths: Tensor
    words: np.ndarray  # log p(x | T): [B, L, P]
    seed: int

    def posterior(self) -> Posterior:
        return posterior(self.model.grammar(), self.tokens, self.lengths)


@torch.no_grad()
def parse_batch(model: PCFG, tokens: Tensor, lengths: Tensor, method: str, seed: int) -> list[Tree]:
    """The trees of sentences [B, L] without <eos>."""
    find = choose(METHODS, method, "The method")
    check_integer(seed, "seed", least=0)
    if not tokens.shape[1]:
        tokens = tokens.new_zeros(len(tokens), 1)
    check_possible(model, tokens, lengths)
    grammar, logs = model.grammar(), model.memo("logs", lambda: Logs(model.grammar()))
    words = log_words(grammar, tokens).double().cpu().numpy()
    roots = find(Given(model, tokens, lengths, words, seed), logs)
    mass, trees = float(grammar.finite.total.log()), []
    for ids, length, row, root in zip(tokens.tolist(), lengths.tolist(), words, roots, strict=True):
        log_prob = logs.root[-1] if root is None else logs.log_prob(root, row)
        trees.append(Tree(model.vocab.decode(ids[:length]), root, grammar.nonterminals, float(log_prob) - mass))
    return trees


def check_possible(model: PCFG, tokens: Tensor, lengths: Tensor) -> None:
    """Raise if any sentence with words has probability zero: it has no tree."""
    impossible = (log_likelihoods(model.grammar(), tokens, lengths) == -torch.inf) & (lengths > 0)
    if bool(impossible.any()):
        row = int(impossible.nonzero()[0])
        sentence = model.written(tokens[row, : lengths[row]].cpu().numpy())
        raise TrellisError(f"The sentence {sentence!r} has probability zero under the grammar; it has no tree.")


def safest(given: Given, logs: Logs) -> list[Node | None]:
    """The trees with the largest expected number of correct spans, and their most probable symbols."""
    rows = zip(splits_of(given.model, given.tokens, given.lengths), given.words, given.lengths.tolist(), strict=True)
    return [logs.labelled(splits, row[:n]) if n else None for splits, row, n in rows]


@torch.no_grad()
def splits_of(model: PCFG, tokens: Tensor, lengths: Tensor) -> list[Splits]:
    """The splits of the trees with the largest expected number of correct spans."""
    spans = posterior(model.grammar(), tokens, lengths).spans.double()
    return safest_splits(spans, tokens.shape[1], lengths.tolist())


def most_probable(given: Given, logs: Logs) -> list[Node | None]:
    """The trees of the most probable derivations, in which every rule has a rank."""
    lengths = given.lengths.tolist()
    words = log_words(given.model.grammar(), given.tokens.T)
    splits = viterbi_splits(logs, words, lengths)
    rows = zip(splits, given.words, lengths, strict=True)
    return [logs.labelled(one, row[:n]) if n else None for one, row, n in rows]


def sampled(given: Given, logs: Logs) -> list[Node | None]:
    """Random trees given the words. The tree of a sentence does not depend on the rest of its batch."""
    found, grammar = given.posterior(), given.model.grammar()
    trees: list[Node | None] = []
    for row, length in enumerate(given.lengths.tolist()):
        sampler = Sampler(grammar, found.charts, np.exp(given.words[row]), row)
        trees.append(sampler.sample(length, np.random.default_rng(given.seed)) if length else None)
    return trees


METHODS: dict[str, Callable[[Given, Logs], list[Node | None]]] = {
    "mbr": safest, "viterbi": most_probable, "sample": sampled,
}  # fmt: skip
