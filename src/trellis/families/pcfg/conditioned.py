"""A grammar conditioned on a constraint."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints import Automaton, Constraint
from trellis.constraints.constraint import checked
from trellis.devices import check_integer
from trellis.emissions.classed import Classed, Likelihoods
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.base import normalised
from trellis.families.pcfg.constrained import Arcs, Chart, Leaf, Triples
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.prefix import Closure, Prefix
from trellis.inference.infilling import LIMIT
from trellis.models.base import Path
from trellis.models.conditioned import MOST, BestSentence, Conditioned, checked_span
from trellis.models.text import Text

if TYPE_CHECKING:
    from trellis.families.pcfg.model import PCFG


class Begun(NamedTuple):
    """The sentences that begin with some words."""

    tokens: tuple[int, ...]
    log_prob: float  # log of the total probability of them all, before division by the mass of finite trees
    chart: Chart  # of those that satisfy the constraint
    sources: np.ndarray  # the state of the constraint's automaton for each state of the chart, from the prompt's end on


class ConditionedGrammar(Conditioned):
    """A grammar conditioned on a constraint. All queries are exact; there is no search for the best sentence."""

    model: PCFG

    @torch.no_grad()
    def __init__(self, model: PCFG, constraint: Constraint, least: int, most: int | None, complete: bool) -> None:
        if not complete:
            raise TrellisError("A grammar derives whole sentences; use complete=True.")
        span = checked_span(least, MOST if most is None else most, model.vocab.eos)
        super().__init__(model, constraint, checked(constraint).compile(model.vocab), span)
        self.grammar, self.closure, self.likelihoods = model.memo("exact", lambda: exact(model.grammar()))
        self.classed = self.in_classes(self.automaton)
        self.kept: dict[tuple[int, ...], Begun] = {}  # the last prompt

    def in_classes(self, automaton: Automaton) -> Classed:
        return Classed(self.likelihoods, automaton.classes, automaton.moves.shape[1], self.model.device)

    def position(self, tokens: tuple[int, ...]) -> Begun:
        found = self.kept.get(tokens)
        if found is None:
            chart, sources = self.chart(self.automaton, self.classed, tokens, self.span.least)
            found = Begun(tokens, self.prefix(tokens), chart, sources)
            self.kept = {tokens: found}
        return found

    def chart(
        self, automaton: Automaton, classed: Classed, tokens: tuple[int, ...], least: int
    ) -> tuple[Chart, np.ndarray]:
        """The chart of the sentences that an automaton accepts and that begin with these tokens.

        Its automaton reads the tokens first. State i follows i tokens; the states of `automaton` come after these."""
        length, device = len(tokens), self.model.device
        sources = np.concatenate([[automaton.read(tokens)], np.arange(len(automaton.moves))])
        emitted = classed.totals()  # p(a token of the class | T): [C, P]
        possible = np.flatnonzero((emitted > 0).any(1).cpu().numpy())
        after = automaton.moves[sources][:, possible] + length + 1
        onward = np.stack([np.repeat(np.arange(length, length + len(sources)), len(possible)), after.reshape(-1)])
        prompt = np.stack([np.arange(length), np.arange(1, length + 1)])
        begins, ends = np.unique(np.concatenate([prompt, onward], 1), axis=1)
        accepting = np.append(np.zeros(length, bool), automaton.accepting[sources])
        triples = Triples(Arcs(begins, ends, accepting), self.span.most, self.grammar.rank)
        singles = triples.of_length(1) if len(triples) else slice(0, 0)
        begins, ends = triples.begins[singles], triples.ends[singles]
        given = begins < length
        words = emitted.new_zeros(len(begins), emitted.shape[1])
        prompted = torch.tensor([tokens[i] for i in begins[given]], dtype=torch.int64, device=device)
        words[given] = self.likelihoods.rows(prompted)
        leads = automaton.moves[sources[begins[~given] - length]] == sources[ends[~given] - length][:, None]
        words[~given] = torch.from_numpy(leads).to(emitted) @ emitted
        return Chart(self.grammar, triples, words, accepting, least), sources

    def prefix(self, tokens: tuple[int, ...]) -> float:
        """log of the total probability of sentences that begin with these tokens, before division by the mass of finite
        trees."""
        state = Prefix.begin(self.closure, 1)
        for token in tokens:
            state = state.extend(self.closure, torch.tensor([token], device=self.model.device))
        return float(state.log_prefix)

    def log_prob_at(self, position: Begun) -> float:
        return min(position.chart.log_prob - position.log_prob, 0.0) if position.log_prob > -np.inf else -np.inf

    def log_prob_longer_at(self, position: Begun) -> float:
        """One minus the probability of all other sentences, so values below 1e-13 may be rounding errors."""
        if position.log_prob == -np.inf:
            return -np.inf
        everything = Automaton(np.zeros((1, 1), np.int64), np.ones(1, bool), np.zeros_like(self.automaton.classes))
        chart, _ = self.chart(everything, self.in_classes(everything), position.tokens, 0)
        shorter = self.log_prob_at(position._replace(chart=chart))
        with np.errstate(divide="ignore"):
            return float(np.log(-np.expm1(shorter)))

    def length_probs_at(self, position: Begun) -> np.ndarray:
        return position.chart.length_probs(self.span.most)

    def read(self, tokens: tuple[int, ...]) -> float:
        return min(self.prefix(tokens) - float(self.grammar.finite.total.log()), 0.0)

    def continuations(self, position: Begun, n: int, seed: int) -> list[list[int]]:
        random = np.random.default_rng(check_integer(seed, "seed", least=0))
        leaves = [position.chart.sample(random)[len(position.tokens) :] for _ in range(n)]
        words = self.emitted([leaf for one in leaves for leaf in one], position)
        rows = np.split(words, np.cumsum([len(one) for one in leaves])[:-1])
        return [row.tolist() for row in rows]

    def emitted(self, leaves: list[Leaf], position: Begun) -> np.ndarray:
        """A word for each leaf."""
        moves, first = self.automaton.moves, len(position.tokens)
        kinds, kind = np.unique([leaf[:3] for leaf in leaves], axis=0, return_inverse=True)
        uniform, words = np.array([leaf.uniform for leaf in leaves]), np.zeros(len(leaves), np.int64)
        for number, (begin, end, preterminal) in enumerate(kinds.tolist()):
            leads = moves[position.sources[begin - first]] == position.sources[end - first]
            probs = self.grammar.log_words(preterminal).exp().cpu().numpy() * leads[self.automaton.classes]
            here, sums = kind.reshape(-1) == number, probs.cumsum()
            words[here] = np.searchsorted(sums, uniform[here] * sums[-1], side="right").clip(max=len(sums) - 1)
        return words

    def next_tokens(self, position: Begun) -> Tensor:
        chart, first = position.chart, len(position.tokens)
        slopes, nothing = chart.outside(), self.grammar.root_words.new_zeros(1, self.grammar.preterminals)
        onward = np.flatnonzero(chart.triples.begins[: len(slopes)] == first)
        targets = position.sources[chart.triples.ends[onward] - first].tolist()
        by_target = {target: slopes[row : row + 1] for target, row in zip(targets, onward.tolist(), strict=True)}
        moves = self.automaton.moves[position.sources[0]].tolist()
        found = self.classed.predict(lambda c: by_target.get(moves[c], nothing))[0][0].log()
        now = (chart.triples.lengths == first) & (chart.triples.ends == first)
        ended = np.logaddexp.reduce(chart.log_probs[now[chart.whole]], initial=-np.inf if first else chart.empty)
        found[self.model.vocab.eos] = ended - chart.log_prob
        return found.log_softmax(-1)

    def best(self, prompt: Text = "", limit: int = LIMIT) -> BestSentence:
        raise self.refusal("best")

    def viterbi(self, prompt: Text = "") -> tuple[str, Path]:
        raise self.refusal("viterbi")

    def refusal(self, verb: str) -> TrellisError:
        return TrellisError(
            f"Cannot find the most probable sentence of a grammar under a constraint: {verb}() is for HMMs."
        )


def exact(grammar: Grammar) -> tuple[Grammar, Closure, Likelihoods]:
    """The grammar in float64, with probabilities that sum to one without the rounding errors of float32."""
    given, emission = grammar.double(), grammar.emission
    ranks = None if given.ranks is None else given.ranks / given.ranks.sum(1, keepdim=True)
    lefts, rights = (one / one.sum(0) for one in (given.lefts, given.rights))
    words = normalised(emission.table.double(), emission.partition, emission.num_states)
    found = Grammar(given.root / given.root.sum(), ranks, lefts, rights, words)
    return found, Closure(found), Likelihoods.of(words)
