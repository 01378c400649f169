"""Guidance: an HMM makes another left-to-right model satisfy a constraint.

The other model's probability of the next token, p(x_t | x_<t), is multiplied by the HMM's
p(constraint | x_<=t) / p(constraint | x_<t). If the other model is the HMM itself, the product is
p(x_t | x_<t, constraint); otherwise it is an approximation. Every generated text satisfies the constraint."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints import Alphabet, Constraint
from trellis.constraints.constraint import checked
from trellis.devices import check_integer, draw_uniform, seeded
from trellis.errors import TrellisError
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_sampling import draw
from trellis.inference.guided import sample_next
from trellis.inference.prefixes import Prefix, Prefixes
from trellis.models.base import LanguageModel
from trellis.models.chain import ChainModel
from trellis.models.conditioned import MOST_SAMPLES, checked_span
from trellis.models.processor import Processor
from trellis.models.text import Text, one_sentence
from trellis.transitions.base import invert


class Particles(NamedTuple):
    """Weighted samples from p(text | constraint) under the guided model."""

    texts: list[str]
    weights: np.ndarray  # [n], sums to one
    log_prob: float  # log of an unbiased estimate of p(constraint | prompt) under the guided model
    effective: float  # effective sample size at the end: 1 / sum of the squared weights
    least_effective: float  # the smallest at any step, before resampling


class Guide:
    """Corrects the next-token probabilities of another model, so that its texts satisfy a constraint.

    The constraint applies to the text after the prompt, which has `least` to `most` tokens. `alpha` is the weight of
    the correction: 1 gives Bayes' rule; 0 only excludes tokens after which the constraint cannot be satisfied."""

    def __init__(self, product: Product, words: Sequence[str], alpha: float = 1.0, cache: int = 256) -> None:
        self.product, self.words, self.alpha = product, words, alpha
        self.prefixes = Prefixes(product, cache)

    def positions(self, prefixes: Sequence[Prefix]) -> Position:
        return self.prefixes.positions(prefixes)

    @torch.no_grad()
    def corrections(self, prefixes: Sequence[Prefix]) -> Tensor:
        """The logarithm of the correction of each next token: alpha log (p(constraint | tokens, next token) /
        p(constraint | tokens)), [B, V]. It is -inf if the constraint cannot be satisfied after this token."""
        distinct = list(dict.fromkeys(prefixes))
        position = self.positions(distinct)
        found, before = self.product.corrections(position), self.product.log_prob(position)
        excluded = found == -torch.inf
        gained = found - before.masked_fill(before == -torch.inf, 0.0).unsqueeze(-1)
        found = (self.alpha * gained).masked_fill(excluded, -torch.inf)
        number = {prefix: i for i, prefix in enumerate(distinct)}
        return found[[number[prefix] for prefix in prefixes]]

    def processor(
        self, pad: int | None = None, attention_mask: Tensor | None = None, seed: int | None = None
    ) -> Processor:
        """A logits processor for one call of `generate` of `transformers`.

        If prompts have different lengths, pad them on the left, and pass the attention mask [B, T] or the token id of
        the padding (`pad`). With a seed, the processor samples the next token itself, which is several times faster. Do
        not combine a seed with beams, temperature or top-p."""
        return Processor(self, pad, attention_mask, seed)

    @torch.no_grad()
    def sample(self, model: LanguageModel, n: int = 1, prompt: Text = "", seed: int = 0) -> list[str]:
        """Sample n texts from another language model with the same vocabulary, guided token by token."""
        writer, generator = Writer(model, self, n, prompt), seeded(seed)
        self.log_prob_after(writer)
        for _ in range(self.product.span.most + 1):
            position = self.positions(writer.prefixes())
            tokens = sample_next(self.product, position, writer.forecast(), self.alpha, generator)
            if bool((tokens < 0).any()):
                raise TrellisError("No token that the constraint allows has a positive probability under both models.")
            writer.write(tokens)
            if not len(writer.active):
                break
        return writer.texts()

    @torch.no_grad()
    def particles(self, model: LanguageModel, n: int = 100, prompt: Text = "", seed: int = 0) -> Particles:
        """Sample n weighted texts by sequential Monte Carlo.

        The HMM, conditioned on the constraint, proposes tokens. The weight of a text is its probability under the
        guided model divided by its probability under the HMM. If the effective sample size falls below n / 2, texts are
        resampled."""
        writer, generator = Writer(model, self, n, prompt), seeded(seed)
        weights = torch.zeros(n, dtype=torch.float64, device=self.product.device)  # log
        total, least = self.log_prob_after(writer), float(n)
        for _ in range(self.product.span.most + 1):
            if not len(writer.active):
                break
            position = self.positions(writer.prefixes())
            numbers = draw_uniform((3, n), weights.device, generator)[:, writer.active]
            ends, words, _ = draw(self.product, position, numbers)
            tokens = words.masked_fill(ends, writer.end)
            theirs = writer.forecast().gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
            impossible = self.product.log_prob(position) == -torch.inf  # by underflow: the tokens mean nothing
            gained = theirs.double() - self.product.log_prob_of(position, tokens)
            weights[writer.active] += gained.masked_fill(impossible, -torch.inf)
            if bool((weights == -torch.inf).all()):
                raise TrellisError("The guided model gives probability zero to every sampled text; use more particles.")
            writer.write(tokens)
            least = min(least, effective(weights))
            if len(writer.active) and effective(weights) < n / 2:
                mean = weights.logsumexp(0) - np.log(n)
                total += float(mean)
                points = (torch.arange(n, device=weights.device) + draw_uniform((1,), weights.device, generator)) / n
                writer.choose(invert(weights.softmax(0).expand(n, -1), points))
                weights = torch.zeros_like(weights)
        total += float(weights.logsumexp(0) - np.log(n))
        return Particles(writer.texts(), weights.softmax(0).cpu().numpy(), total, effective(weights), least)

    def log_prob_after(self, writer: Writer) -> float:
        """log p(constraint | prompt) under the HMM; raises if the constraint is impossible."""
        found = float(self.product.log_prob(self.positions(writer.prefixes()[:1])))
        if found == -np.inf:
            least, most, _ = self.product.span
            raise TrellisError(
                f"No text of {least} to {most} tokens after the prompt satisfies the constraint under the HMM."
            )
        return found


def guide(
    hmm: ChainModel,
    constraint: Constraint,
    least: int = 0,
    most: int = 100,
    alpha: float = 1.0,
    alphabet: Alphabet | None = None,
    cache: int = 256,
) -> Guide:
    """Use an HMM to make another left-to-right model satisfy a constraint, in texts of `least` to `most` tokens.

    The HMM and the guided model must use the same token ids.

    Parameters
    ----------
    hmm
        The HMM that guides.
    constraint
        The constraint to satisfy.
    least, most
        The smallest and the largest number of tokens of a text.
    alpha
        The weight of the correction: 1 gives Bayes' rule; 0 only excludes tokens after which the constraint cannot
        be satisfied.
    alphabet
        The text of each token; by default, that of the HMM's vocabulary. For a `transformers` model, pass
        `Alphabet.of_tokenizer(tokenizer)`.
    cache
        The number of prefixes whose state distributions are kept; those of the latest call are always kept.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
    >>> guide = trellis.guide(model, trellis.constraints.begins("b"), most=10)
    >>> bigram = trellis.train(["a b", "b a"] * 20, family="bigram").model
    >>> {text[0] for text in guide.sample(bigram, 10)}
    {'b'}
    """
    if not isinstance(hmm, ChainModel):
        raise TrellisError(f"Only an HMM can be a guide, not {hmm!r}.")
    if not (isinstance(alpha, Real) and 0 <= alpha <= np.finfo(float).max):
        raise TrellisError(f"The weight alpha of the guide is {alpha!r}; pass a number that is not negative.")
    check_integer(cache, "number of prefixes in the cache", least=0)
    alphabet = Alphabet.of_vocabulary(hmm.vocab) if alphabet is None else alphabet
    check_alphabet(alphabet, hmm)
    span = checked_span(least, most, alphabet.end, "tokens")
    automaton = checked(constraint).compile(alphabet)
    with torch.no_grad():
        return Guide(Product(hmm.chain(), automaton, span, hmm.likelihoods()), hmm.vocab.words, float(alpha), cache)


def check_alphabet(alphabet: Any, hmm: ChainModel) -> None:
    """Raise if an alphabet does not have the ids of an HMM."""
    if not isinstance(alphabet, Alphabet):
        kind = type(alphabet).__name__
        raise TrellisError(f"Pass an alphabet, such as Alphabet.of_tokenizer(tokenizer), not {kind}.")
    if len(alphabet.words) != len(hmm.vocab):
        raise TrellisError(f"The alphabet has {len(alphabet.words):,} tokens, but the HMM has {len(hmm.vocab):,}.")
    if alphabet.end not in (None, hmm.vocab.eos):
        raise TrellisError(
            f"The alphabet ends texts with token {alphabet.end}, but the <eos> of the HMM is token {hmm.vocab.eos}; "
            "pass this id as `end` of the alphabet."
        )


class Writer:
    """Texts that a language model generates in parallel. Texts that have ended are inactive."""

    def __init__(self, model: LanguageModel, guide: Guide, n: int, prompt: Text) -> None:
        check_integer(n, "number of texts", most=MOST_SAMPLES)
        if not isinstance(model, LanguageModel):
            raise TrellisError(f"Only a language model of Trellis can be guided here, not {model!r}.")
        if guide.product.span.end is None:
            raise TrellisError("A guide whose alphabet has no end can only be used as a processor; pass another one.")
        if model.vocab.words != guide.words:
            size = guide.product.num_symbols
            raise TrellisError(f"The guided model must have the {size:,} tokens of the HMM, with the same ids.")
        self.model, self.end, self.context = model, model.vocab.eos, tuple(one_sentence(model, prompt).tolist())
        self.rows: list[list[int]] = [[] for _ in range(n)]
        self.active = torch.arange(n, device=guide.product.device)  # the model may be on another device
        self.state: Any = None  # of all rows; recomputed if None

    def prefixes(self) -> list[Prefix]:
        """The prefixes of the active texts."""
        return [Prefix(tuple(self.rows[i]), self.context) for i in self.active.tolist()]

    def forecast(self) -> Tensor:
        """log p(next token) of the active texts."""
        if self.state is None:
            self.state = self.model.sentence_start(len(self.rows))
            longest = max(map(len, self.rows))
            rows = [[*self.context, *row, *[self.end] * (longest - len(row))] for row in self.rows]
            if rows[0]:
                tokens = torch.tensor(rows, device=self.model.device)
                _, self.state = self.model.score(tokens, self.state)
        return self.model.forecast(self.state).to(self.active.device)[self.active]

    def write(self, tokens: Tensor) -> None:
        """Append one token to each active text."""
        column = torch.full((len(self.rows), 1), self.end, device=self.model.device)
        column[self.active.to(column.device), 0] = tokens.to(column.device)
        _, self.state = self.model.score(column, self.state)
        for row, token in zip(self.active.tolist(), tokens.tolist(), strict=True):
            if token != self.end:
                self.rows[row].append(token)
        self.active = self.active[tokens != self.end]

    def choose(self, rows: Tensor) -> None:
        """Replace the texts by a selection of them, such as resampled particles."""
        active = torch.zeros(len(self.rows), dtype=torch.bool, device=rows.device)
        active[self.active] = True
        self.rows = [list(self.rows[i]) for i in rows.tolist()]
        self.active, self.state = active[rows].nonzero().flatten(), None

    def texts(self) -> list[str]:
        vocab = self.model.vocab
        return [vocab.join(vocab.decode([*self.context, *row])) for row in self.rows]


def effective(weights: Tensor) -> float:
    """The effective sample size of log-weights."""
    return float(1 / weights.softmax(0).square().sum())
