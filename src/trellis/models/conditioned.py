"""A language model conditioned on a constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from trellis.constraints import Automaton, Constraint
from trellis.constraints.automaton import side_by_side
from trellis.constraints.constraint import checked
from trellis.devices import check_integer, seeded
from trellis.errors import TrellisError
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_lengths import beyond, length_probs
from trellis.inference.constrained_sampling import sample
from trellis.inference.constrained_search import Explained, most_probable_path, most_probable_tokens
from trellis.inference.infilling import LIMIT
from trellis.inference.prefixes import Prefix, Prefixes
from trellis.models.base import LanguageModel, Path, Ranked
from trellis.models.text import Text, one_sentence

if TYPE_CHECKING:
    from trellis.models.chain import ChainModel

MOST = 100  # words of a sentence, by default
MOST_SAMPLES = MOST_WORDS = 1_000_000


class BestSentence(NamedTuple):
    """The most probable sentence that satisfies a constraint."""

    text: str
    log_prob: float  # log p(text), including <eos> if the sentence is complete
    proved: bool  # whether no other sentence is more probable; False: the search reached its limit


class Sampled(NamedTuple):
    """A sampled sentence that satisfies a constraint."""

    text: str
    log_prob: float  # log p(text), including <eos> if the sentence is complete
    log_prob_given: float  # log p(text | constraint, prompt)


class Conditioned(ABC):
    """The distribution of a model over the sentences of `least` to `most` words that satisfy a constraint.

    A `prompt` is the beginning of a sentence; the constraint applies to the whole sentence, prompt included."""

    def __init__(self, model: LanguageModel, constraint: Constraint, automaton: Automaton, span: Span) -> None:
        self.model, self.constraint, self.automaton, self.span = model, constraint, automaton, span

    def __repr__(self) -> str:
        return f"<Conditioned: {self.model!r}, {self.constraint.name}>"

    @abstractmethod
    def position(self, tokens: tuple[int, ...]) -> Any:
        """The states of the model and of the automaton after these tokens."""

    @abstractmethod
    def log_prob_at(self, position: Any) -> float:
        """log p(constraint | tokens so far)."""

    @abstractmethod
    def log_prob_longer_at(self, position: Any) -> float:
        """log p(more than `most` words | tokens so far)."""

    @abstractmethod
    def length_probs_at(self, position: Any) -> np.ndarray:
        """p(number of words | tokens so far, constraint): [most + 1]."""

    @abstractmethod
    def next_tokens(self, position: Any) -> torch.Tensor:
        """log p(next token | tokens so far, constraint): [V]."""

    @abstractmethod
    def continuations(self, position: Any, n: int, seed: int) -> list[list[int]]:
        """Sample the rest of n sentences from p(tokens | tokens so far, constraint)."""

    @abstractmethod
    def read(self, tokens: tuple[int, ...]) -> float:
        """log p(the sentence begins with these tokens)."""

    @abstractmethod
    def best(self, prompt: Text = "", limit: int = LIMIT) -> BestSentence:
        """The most probable sentence, found by a search with upper bounds. The search keeps at most `limit` prefixes of
        each length."""

    @abstractmethod
    def viterbi(self, prompt: Text = "") -> tuple[str, Path]:
        """The sentence and path of states with the highest joint probability, given the prompt.

        The path covers the words after the prompt, and <eos>."""

    @torch.no_grad()
    def at(self, prompt: Text, possible: bool = True) -> tuple[tuple[int, ...], Any]:
        """The tokens of a prompt, and the position after it. With `possible`, raises if no sentence that begins with
        the prompt satisfies the constraint."""
        tokens = tuple(one_sentence(self.model, prompt).tolist())
        if possible and len(tokens) > self.span.most:
            raise TrellisError(
                f"The prompt has {len(tokens)} words, more than the {self.span.most} that a sentence may have; shorten "
                "it, or allow more words."
            )
        position = self.position(tokens)
        if possible and self.log_prob_at(position) == -np.inf:
            begins = f" that begins with {self.text(tokens)!r}" if tokens else ""
            raise TrellisError(
                f"No sentence of {self.span.least} to {self.span.most} words{begins} satisfies the constraint under "
                f"the model: {self.constraint.name}."
            )
        return tokens, position

    def text(self, tokens: Any) -> str:
        return self.model.vocab.join(self.model.vocab.decode(tokens))

    @torch.no_grad()
    def log_prob(self, prompt: Text = "") -> float:
        """log p(constraint | the sentence begins with the prompt).

        >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
        >>> model.constrain(trellis.constraints.length(0), most=0).log_prob() == model.log_prob("")
        True
        """
        return self.log_prob_at(self.at(prompt, possible=False)[1])

    @property
    def prob(self) -> float:
        """The probability that a sentence satisfies the constraint and has `least` to `most` words."""
        return float(np.exp(self.log_prob()))

    @torch.no_grad()
    def log_prob_longer(self, prompt: Text = "") -> float:
        """log p(more than `most` words | the sentence begins with the prompt); such sentences are not sampled."""
        return self.log_prob_longer_at(self.at(prompt, possible=False)[1])

    @property
    def prob_longer(self) -> float:
        """The probability of more than `most` words; such sentences are not part of `prob` and are not sampled."""
        return float(np.exp(self.log_prob_longer()))

    def sample(self, n: int = 1, prompt: Text = "", seed: int = 0) -> list[str]:
        """Sample n sentences from p(sentence | constraint, prompt)."""
        return [self.text(row) for row in self.draw(n, prompt, seed)]

    def samples(self, n: int = 1, prompt: Text = "", seed: int = 0) -> list[Sampled]:
        """The sentences of `sample`, with their log-probabilities."""
        rows = self.draw(n, prompt, seed)
        known = self.log_prob(prompt) + self.read(self.at(prompt)[0])
        found = self.model.token_log_probs([np.array(row, np.int64) for row in rows])
        sums = [float(np.sum(one[: len(row) + (self.span.end is not None)], dtype=np.float64))
                for one, row in zip(found, rows, strict=True)]  # fmt: skip
        return [Sampled(self.text(row), total, min(total - known, 0.0)) for row, total in zip(rows, sums, strict=True)]

    @torch.no_grad()
    def draw(self, n: int, prompt: Text, seed: int) -> list[list[int]]:
        """The tokens of n samples, prompt included."""
        check_integer(n, "number of sentences", most=MOST_SAMPLES)
        tokens, position = self.at(prompt)
        return [[*tokens, *row] for row in self.continuations(position, n, seed)]

    @torch.no_grad()
    def predict(self, prompt: Text = "", n: int = 10) -> Ranked:
        """The n most probable next words after a prompt, given that the sentence will satisfy the constraint."""
        return self.model.rank(self.next_tokens(self.at(prompt)[1]), n)

    @torch.no_grad()
    def length_probs(self, prompt: Text = "") -> np.ndarray:
        """p(number of words | constraint, prompt): [most + 1]."""
        return self.length_probs_at(self.at(prompt)[1])

    def expected_length(self, prompt: Text = "") -> float:
        """The expected number of words of a sentence that satisfies the constraint."""
        probs = self.length_probs(prompt)
        return float(probs @ np.arange(len(probs)))


class ConditionedChain(Conditioned):
    """An HMM conditioned on a constraint.

    All queries are exact, except that the search of `best` may reach its limit (see `proved`). With `complete=False`, a
    text is a stream of exactly `most` tokens, in which <eos> is a token like any other."""

    model: ChainModel

    def __init__(self, model: ChainModel, constraint: Constraint, automaton: Automaton, product: Product, start: int):
        super().__init__(model, constraint, automaton, product.span)
        self.product, self.start = product, start
        self.prefixes = Prefixes(product, start=start)

    @classmethod
    @torch.no_grad()
    def several(
        cls, model: ChainModel, constraints: Sequence[Constraint], least: int, most: int | None, complete: bool
    ) -> list[ConditionedChain]:
        """The conditioned model for each of several constraints, which are prepared together.

        Each step takes a single product with the transition matrix for all constraints together."""
        span = checked_span(least, MOST if most is None else most, model.vocab.eos if complete else None)
        automata = [checked(constraint).compile(model.vocab) for constraint in constraints]
        together, starts = side_by_side(automata) if len(automata) > 1 else (automata[0], [0])
        product = Product(model.chain(), together, span, model.likelihoods(), starts)
        parts = zip(constraints, automata, starts, strict=True)
        return [cls(model, constraint, automaton, product, start) for constraint, automaton, start in parts]

    def position(self, tokens: tuple[int, ...]) -> Position:
        return self.prefixes.positions([Prefix(tokens)])

    def log_prob_at(self, position: Position) -> float:
        return float(self.product.log_prob(position))

    def log_prob_longer_at(self, position: Position) -> float:
        return beyond(self.product, position)

    def length_probs_at(self, position: Position) -> np.ndarray:
        return length_probs(self.product, position).cpu().numpy()

    def next_tokens(self, position: Position) -> torch.Tensor:
        return self.product.next_tokens(position)[0]

    def continuations(self, position: Position, n: int, seed: int) -> list[list[int]]:
        many = Position(*(part.expand(n, *part.shape[1:]) for part in position))
        return sample(self.product, many, seeded(seed))

    @torch.no_grad()
    def read(self, tokens: tuple[int, ...]) -> float:
        if not tokens:
            return 0.0
        row = torch.tensor([tokens], device=self.model.device)
        return float(self.model.score(row, self.model.sentence_start(1))[0].double().clamp(max=0).sum())

    def best(self, prompt: Text = "", limit: int = LIMIT) -> BestSentence:
        check_integer(limit, "number of prefixes of each length")
        tokens, position = self.at(prompt)
        found = most_probable_tokens(self.product, position, limit)
        assert found is not None
        log_prob = min(found.log_prob + self.read(tokens), 0.0)
        return BestSentence(self.text([*tokens, *found.tokens]), log_prob, found.proved)

    def viterbi(self, prompt: Text = "") -> tuple[str, Path]:
        tokens, position = self.at(prompt)
        found: Explained | None = most_probable_path(self.product, position)
        assert found is not None
        path = Path(np.array(found.states), min(found.log_prob + self.read(tokens), 0.0))
        return self.text([*tokens, *found.tokens]), path


def checked_span(least: Any, most: Any, end: int | None, unit: str = "words") -> Span:
    """Sentences of `least` to `most` tokens or, if there is no token that ends them, streams of `most` tokens."""
    least = check_integer(least, f"smallest number of {unit}", 0, MOST_WORDS)
    most = check_integer(most, f"largest number of {unit}", 0 if end is not None else 1, MOST_WORDS)
    if least > most:
        raise TrellisError(f"Cannot generate {least} to {most} {unit}; pass 0 <= least <= most.")
    if end is None and least not in (0, most):
        raise TrellisError(f"A stream has exactly {most} {unit}; leave out `least`, which is {least}.")
    return Span(least if end is not None else most, most, end)


@torch.no_grad()
def sample_each(found: Sequence[ConditionedChain], seed: int = 0) -> list[str]:
    """Sample one sentence for each constraint of `constrain_each`, in one batch."""
    found = list(found) if isinstance(found, Iterable) else found
    if not found or not isinstance(found, list) or not all(isinstance(one, ConditionedChain) for one in found):
        raise TrellisError(f"Pass the result of constrain_each, not {found!r}.")
    if any(one.product is not found[0].product for one in found):
        raise TrellisError("The constraints were not prepared together; pass the result of one call of constrain_each.")
    for one in found:
        one.at("")
    product = found[0].product
    first = product.begin(len(found))
    first = first._replace(states=torch.tensor([one.start for one in found], device=product.device))
    rows = sample(product, first, seeded(seed))
    return [one.text(row) for one, row in zip(found, rows, strict=True)]
