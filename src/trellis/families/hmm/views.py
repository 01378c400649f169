"""What the explorer shows of an HMM: the trellis of a sentence, gaps, next words, constraints, and its states."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from trellis.constraints import anything
from trellis.constraints.constructors import conjunction
from trellis.corpus import GAP
from trellis.explore.language import LONGEST_SENTENCE, in_bits
from trellis.explore.views import Answer, command
from trellis.families.hmm.state_views import StateViews
from trellis.inference import queries
from trellis.inference.lattice import Lattice, lattice
from trellis.models.base import Infilled

MOST_STATES, WORTH = 24, 0.01  # maximum number of states in a trellis; minimum peak posterior of a state
FAINTEST = 0.002  # minimum posterior of a transition
CARRIERS = 5  # states shown for a predicted word
SAMPLES = 1  # of the words of gaps, which the explorer does not show


class HMMViews(StateViews):
    """Views of an HMM."""

    views: ClassVar[tuple[str, ...]] = ("sentence", "states", "map", "questions")

    def warm(self) -> None:
        """Also compute what all sentences share, so that the first one is answered quickly."""
        tokens = torch.full((1, 2), self.model.vocab.eos, device=self.model.device)
        self.lattice(tokens)
        super().warm()

    def lattice(self, tokens: Tensor) -> Lattice:
        """The lattice of a sentence [1, T], in which -1 is a gap."""
        has_gaps = bool((tokens < 0).any())
        potentials = self.gap_chain.potentials(tokens) if has_gaps else self.chain.emission.potentials(tokens)
        return lattice(self.chain.prior, self.chain.transition, potentials, MOST_STATES, WORTH)

    @cached_property
    def chain(self) -> queries.Chain:
        """The chain of a new sentence."""
        with torch.no_grad():
            return self.model.chain()

    @cached_property
    def gap_chain(self) -> queries.Chain:
        """The same chain, in which a gap is any word but <eos>."""
        vocab = self.model.vocab
        return self.chain.only(torch.arange(len(vocab), device=self.model.device) != vocab.eos)

    @torch.no_grad()
    def smooth(self, text: str) -> Answer:
        """The trellis of a complete sentence, over its most probable states."""
        ids, words, known = self.words_of(text, GAP)
        vocab, gaps = self.model.vocab, (ids < 0).nonzero()[0].tolist()
        tokens = torch.tensor([[*ids.tolist(), vocab.eos]], device=self.model.device)
        found = self.lattice(tokens)
        draws = command("trellis", "draw", self.name, text, "-o", "trellis.svg")
        return {
            "words": [*words, vocab.words[vocab.eos]],
            "known": [*known, True],
            "states": self.named(found.states),
            "posterior": found.posterior.tolist(),
            "edges": [edges(pairs) for pairs in found.pairs],
            "path": [None if z < 0 else z for z in found.path],
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
        """The states that are most probable given that a distribution over states [K] emits the word."""
        weights = prior * self.model.parts().emission.log_probs(self.model.vocab.index[word]).exp()
        return self.ranked(weights / weights.sum(), CARRIERS)

    @torch.no_grad()
    def infill(self, text: str, top: int, complete: bool) -> Answer:
        """The most probable words of each gap, the states that emit them, and the most probable sentence."""
        ids, _, _ = self.words_of(text, GAP)
        found = cast(Infilled, self.model.infill(ids, top, SAMPLES, complete=complete))
        tokens = torch.tensor([[*ids.tolist(), *[self.model.vocab.eos] * complete]], device=self.model.device)
        rest = queries.cavity(self.gap_chain, self.gap_chain.potentials(tokens))[0]
        places = (ids < 0).nonzero()[0].tolist()
        gaps = [
            {"position": place, "items": [self.answer(rest[place], *pair) for pair in ranked]}
            for place, ranked in zip(places, found.gaps, strict=True)
        ]
        best = {"text": found.best, "log_prob": found.log_prob, "proved": found.proved}
        return {"gaps": gaps, "best": best, "command": self.infilling(text, top, complete)}

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
