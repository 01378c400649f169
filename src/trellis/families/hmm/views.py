"""The explorer's views of an HMM: the trellis of a sentence, gaps, next words, constraints, and its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor

from trellis.constraints import anything
from trellis.constraints.constructors import conjunction
from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.explore.language import LONGEST_SENTENCE, in_bits
from trellis.explore.later import Later, NotReadyError
from trellis.explore.views import Answer, command
from trellis.families.hmm.model import HMM
from trellis.families.hmm.state_views import StateViews
from trellis.inference.infilling import Filled, best_words
from trellis.inference.lattice import Solved, lattice, solve
from trellis.inference.queries import Chain, log_marginal, words_of
from trellis.report.format import whole
from trellis.transitions import Softmax

MOST_STATES, WORTH = 24, 0.01  # states in a trellis, if the path has no more; minimum peak posterior of the others
FAINTEST = 0.002  # minimum posterior of a transition
MOST_RECENT = 4  # sentences whose states are kept
CARRIERS = 5  # states shown for a predicted word
AT_ONCE = 1 << 28  # transitions between adjacent gaps that are computed while a request waits
NORMALISING = "Gaps need the normalisers of all transitions, which are computed once for each model"
ALL_PAIRS = "Gaps side by side need all pairs of the {states} states"


class HMMViews(StateViews):
    """Views of an HMM."""

    views: ClassVar[tuple[str, ...]] = ("sentence", "states", "map", "questions")

    def __init__(self, model: HMM, name: str = "", folder: Path | None = None) -> None:
        super().__init__(model, name, folder)
        self.recent: dict[tuple[int, ...], Solved] = {}

    def warm(self) -> None:
        """Also compute values that all sentences share, so that the first sentence is answered quickly."""
        self.solved((self.model.vocab.eos,) * 2)
        super().warm()

    def solved(self, tokens: tuple[int, ...]) -> Solved:
        """The states of a sentence, in which -1 is a gap. Answers about the same sentence share them."""
        found = self.recent.get(tokens)
        if found is None:
            found = self.solved_later(tokens, self.later) if self.later and -1 in tokens else self.solve(tokens)
            self.recent = dict([*self.recent.items(), (tokens, found)][-MOST_RECENT:])
        return found

    @torch.no_grad()
    def solve(self, tokens: tuple[int, ...], report: Callable[[float], object] = bool) -> Solved:
        chain = self.gap_chain if -1 in tokens else self.chain
        potentials = chain.potentials(torch.tensor([tokens], device=self.model.device))
        return solve(chain.prior, chain.transition, potentials, report)

    def solved_later(self, tokens: tuple[int, ...], later: Later) -> Solved:
        """The states of a sentence with gaps; raises NotReadyError while they are computed in the background."""
        if self.lazy is not None and not self.failure and (missing := len(self.lazy.missing)):
            raise NotReadyError(1 - missing / self.model.num_states, NORMALISING)
        if not self.takes_long(tokens):
            return self.solve(tokens)
        doing = ALL_PAIRS.format(states=whole(self.model.num_states))
        return cast(Solved, later.ask(tokens, partial(self.solve, tokens), doing))

    def takes_long(self, tokens: Sequence[int]) -> bool:
        """Whether a sentence has gaps side by side, for which all pairs of very many states are computed."""
        if self.model.device.type != "cpu" or not isinstance(self.chain.transition, Softmax):
            return False
        return sum(a == b == -1 for a, b in pairwise(tokens)) * self.model.num_states**2 > AT_ONCE

    @cached_property
    def chain(self) -> Chain:
        """The prior, transition and emission of a new sentence."""
        with torch.no_grad():
            return self.model.chain()

    @cached_property
    def gap_chain(self) -> Chain:
        """The same chain, in which a gap is any word but <eos>."""
        vocab = self.model.vocab
        return self.chain.only(torch.arange(len(vocab), device=self.model.device) != vocab.eos)

    @torch.no_grad()
    def smooth(self, text: str) -> Answer:
        """The trellis of a complete sentence, over its most relevant states."""
        ids, words, known = self.words_of(text, GAP)
        vocab, gaps = self.model.vocab, (ids < 0).nonzero()[0].tolist()
        found = lattice(self.solved((*ids.tolist(), vocab.eos)), self.chain.transition, MOST_STATES, WORTH)
        draws = command("trellis", "draw", self.name, text, "-o", "trellis.svg")
        return {
            "words": [*words, vocab.words[vocab.eos]],
            "known": [*known, True],
            "states": self.named(found.states),
            "posterior": found.posterior.tolist(),
            "edges": [edges(pairs) for pairs in found.pairs],
            "path": found.path,
            "surprisal": in_bits(found.log_probs),
            "log_prob": float(found.log_probs.sum()),
            "gaps": gaps,
            "command": self.infilling(text, 10, complete=True) if gaps else draws,
        }

    @torch.no_grad()
    def predict(self, text: str, top: int) -> Answer:
        """The most probable next words, and the states that emit them: p(state | text, next word)."""
        self.check_length(text)
        model, state = self.model, self.model.sentence_start(1)
        if text.strip():
            state = model.score(model.encode_line(text), state)[1]
        start, transition, emission = model.parts()
        prior = state.prior(start, transition).probs
        ranked = model.rank(emission.predict(prior)[0], top)
        items = [self.answer(prior[0], word, prob) for word, prob in ranked]
        return {"items": items, "command": self.python(f"predict({text!r}, {top})")}

    def carriers(self, prior: Tensor, word: str) -> list[Answer]:
        """The most probable states after the word is observed, given their distribution [K] before it."""
        weights = prior * self.model.parts().emission.log_probs(self.model.vocab.index[word]).exp()
        return self.ranked(weights / weights.sum(), CARRIERS)

    @torch.no_grad()
    def infill(self, text: str, top: int, complete: bool) -> Answer:
        """The most probable words of each gap, the states that emit them, and the most probable sentence."""
        ids, _, _ = self.words_of(text, GAP)
        places = (ids < 0).nonzero()[0].tolist()
        if not places:
            raise TrellisError(f"The text {text!r} has no gap; write {GAP} for each missing word.")
        tokens = torch.tensor([[*ids.tolist(), *[self.model.vocab.eos] * complete]], device=self.model.device)
        posterior = self.solved(tuple(tokens[0].tolist())).posterior[places]
        states, words = words_of(self.gap_chain, posterior)
        lengths = torch.tensor([tokens.shape[1]], device=tokens.device)
        self.model.check_possible((states.sum(-1) == 0).any().unsqueeze(0), tokens, lengths)
        best = self.best(tokens, words.argmax(-1))
        gaps = [
            {"position": place, "items": [self.answer(rest, *pair) for pair in self.model.rank(log_probs, top)]}
            for place, rest, log_probs in zip(places, states, words, strict=True)
        ]
        sentence = self.model.sentences(best.tokens[:, : len(ids)])[0]
        found = {"text": sentence, "log_prob": float(best.log_probs[0]), "proved": bool(best.proved[0])}
        return {"gaps": gaps, "best": found, "command": self.infilling(text, top, complete)}

    def best(self, tokens: Tensor, each: Tensor) -> Filled:
        """A sentence [1, T] with its gaps filled, given the most probable word of each gap. If the search for the best
        words would take long, only these words and those of the Viterbi path are compared."""
        key = tuple(tokens[0].tolist())
        if not self.takes_long(key):
            return best_words(self.gap_chain, tokens, None, each)
        by_state = (self.gap_chain.gaps or self.gap_chain.emission).best()[1]
        filled = [
            tokens.masked_scatter(tokens < 0, words) for words in (each, by_state[self.solved(key).path[tokens[0] < 0]])
        ]
        scored = [(float(log_marginal(self.gap_chain, one)), one) for one in filled]
        log_prob, words = max(scored, key=lambda pair: pair[0])
        return Filled(words, torch.tensor([log_prob], dtype=torch.float64), torch.tensor([False]))

    def answer(self, rest: Tensor, word: str, prob: float) -> Answer:
        return {"word": word, "prob": prob, "states": self.carriers(rest, word)}

    def infilling(self, text: str, top: int, complete: bool) -> str:
        return command("trellis", "infill", self.name, text, "-n", top, *["--complete"] * complete)

    def generate(
        self, contains: list[str], ordered: bool, without: list[str], regex: str, template: str,
        words: tuple[int, int], n: int, best: bool, seed: int,
    ) -> Answer:  # fmt: skip
        """Samples under constraints, or the most probable sentence, and the probability of the constraints."""
        given = {"contains": contains, "not": without, "regex": [regex] * bool(regex)}
        given["template"] = [template] * bool(template)
        found = self.model.constrain(conjunction(given, ordered), *words)
        options = [part for name, texts in given.items() for one in texts for part in (f"--{name}", one)]
        options += ["--in-order"] * ordered + ["--words", f"{words[0]}..{words[1]}"]
        options += ["--best"] if best else ["-n", str(n), "--seed", str(seed)]
        sentences = [found.best()] if best else found.samples(n, seed=seed)
        return {
            "log_prob": found.log_prob(),
            "constraint": found.constraint.name,
            "items": [{"text": one.text, "log_prob": one.log_prob} for one in sentences],
            "proved": getattr(sentences[0], "proved", None),
            "command": command("trellis", "generate", self.name, *options),
        }

    def sample(self, n: int, seed: int, prompt: str) -> Answer:
        if not prompt:
            return super().sample(n, seed, prompt)
        self.check_length(prompt)
        found = self.model.constrain(anything(), 0, LONGEST_SENTENCE).samples(n, prompt, seed)
        options = "--prompt", prompt, "-n", n, "--seed", seed
        items = [{"text": one.text, "log_prob": one.log_prob} for one in found]
        return {"items": items, "command": command("trellis", "generate", self.name, *options)}


def edges(pairs: Tensor) -> list[list[float]]:
    """The transitions [n, n] that are probable enough to show: (from, to, probability)."""
    places = (pairs >= FAINTEST).nonzero().tolist()
    return [[i, j, float(pairs[i, j])] for i, j in places]
