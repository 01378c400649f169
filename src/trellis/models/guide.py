"""Guidance: an HMM makes another left-to-right model satisfy a constraint.

The other model's probability of the next token, p(x_t | x_<t), is multiplied by the HMM's
p(constraint | x_<=t) / p(constraint | x_<t). If the other model is the HMM itself, the product is
p(x_t | x_<t, constraint); otherwise it is an approximation. Every generated text satisfies the constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints import Alphabet, Constraint
from trellis.constraints.constraint import checked
from trellis.devices import draw_uniform, seeded
from trellis.errors import TrellisError
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_sampling import draw
from trellis.inference.guided import sample_next
from trellis.inference.prefixes import Prefix, Prefixes
from trellis.models.base import LanguageModel
from trellis.models.chain import ChainModel
from trellis.models.text import Text, sentences_of
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

    def __init__(self, product: Product, alpha: float = 1.0, cache: int = 256) -> None:
        self.product, self.alpha = product, alpha
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
        total, least = float(self.product.log_prob(self.positions(writer.prefixes()[:1]))), float(n)
        for _ in range(self.product.span.most + 1):
            if not len(writer.active):
                break
            position = self.positions(writer.prefixes())
            numbers = draw_uniform((3, n), weights.device, generator)[:, writer.active]
            ends, words, _ = draw(self.product, position, numbers)
            tokens = words.masked_fill(ends, writer.end)
            theirs = writer.forecast().gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
            weights[writer.active] += theirs.double() - self.product.log_prob_of(position, tokens)
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
        The number of prefixes whose state distributions are kept.

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
    if not alpha >= 0:
        raise TrellisError(f"The weight alpha of the guide is {alpha}; it must not be negative.")
    alphabet = Alphabet.of_vocabulary(hmm.vocab) if alphabet is None else alphabet
    if len(alphabet.words) != len(hmm.vocab):
        raise TrellisError(f"The alphabet has {len(alphabet.words):,} tokens, but the HMM has {len(hmm.vocab):,}.")
    automaton, span = checked(constraint).compile(alphabet), Span(least, most, alphabet.end)
    with torch.no_grad():
        return Guide(Product(hmm.chain(), automaton, span, hmm.likelihoods()), alpha, cache)


class Writer:
    """Texts that a language model generates in parallel. Texts that have ended are inactive."""

    def __init__(self, model: LanguageModel, guide: Guide, n: int, prompt: Text) -> None:
        if n < 1:
            raise TrellisError(f"Cannot sample {n} texts; pass 1 or more.")
        size = guide.product.num_symbols
        if len(model.vocab) != size or model.vocab.eos != guide.product.span.end:
            raise TrellisError(f"The guided model must have the {size:,} tokens of the HMM, with the same <eos>.")
        (ids,) = sentences_of(model, prompt).sentences
        self.model, self.end, self.context = model, model.vocab.eos, tuple(ids.tolist())
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


class Processor:
    """A logits processor of `transformers`: adds the corrections to the scores of every text that has not ended.

    The tokens of the first call are the prompt. Each row is looked up by its tokens, so beams and reordered batches
    work. Tokens of the prompt that are not in the HMM's vocabulary are skipped."""

    def __init__(self, guide: Guide, pad: int | None, attention_mask: Tensor | None, seed: int | None = None) -> None:
        self.guide, self.pad = guide, pad
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.mask = None if attention_mask is None else attention_mask.bool().tolist()
        self.width: int | None = None
        self.prompts: set[tuple[int, ...]] = set()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, end = input_ids.tolist(), self.guide.product.span.end
        if self.width is None:
            self.width, self.prompts = input_ids.shape[1], set(map(tuple, rows))
        if any(tuple(row[: self.width]) not in self.prompts for row in rows):
            raise TrellisError("A processor is for one call of generate; create a new one for each call.")
        going = [i for i, row in enumerate(rows) if end not in row[self.width :]]
        if not going:
            return scores
        prefixes = [Prefix(tuple(rows[i][self.width :]), self.context(i, rows)) for i in going]
        index = torch.tensor(going, device=scores.device)
        log_probs, size = scores[index].log_softmax(-1), self.guide.product.num_symbols
        found = torch.full_like(log_probs, -torch.inf)
        find = self.corrected if self.generator is None else self.sampled
        found[:, :size] = find(prefixes, log_probs[:, :size])
        impossible = found.amax(-1) == -torch.inf  # such as beams of score -inf: they end
        if input_ids.shape[1] == self.width and bool(impossible.all()):
            raise TrellisError("No text after the prompts can satisfy the constraint.")
        found[impossible, end] = 0.0
        return scores.index_copy(0, index, found)

    def corrected(self, prefixes: Sequence[Prefix], log_probs: Tensor) -> Tensor:
        """The scores of all tokens, plus the logarithms of their corrections."""
        return log_probs + self.guide.corrections(prefixes).to(log_probs)

    @torch.no_grad()
    def sampled(self, prefixes: Sequence[Prefix], log_probs: Tensor) -> Tensor:
        """Sample the next token of each text, and return scores: zero for this token, -inf for all others."""
        product, alpha = self.guide.product, self.guide.alpha
        words = log_probs.to(product.device)
        tokens = sample_next(product, self.guide.positions(prefixes), words, alpha, self.generator).to(log_probs.device)
        chosen = torch.arange(log_probs.shape[1], device=tokens.device) == tokens.unsqueeze(-1)
        return torch.zeros_like(log_probs).masked_fill(~chosen, -torch.inf)

    def context(self, number: int, rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The prompt of a row, without padding."""
        prompt, size = rows[number][: self.width], self.guide.product.num_symbols
        if self.mask is not None:
            seen = self.mask[number * len(self.mask) // len(rows)]
            prompt = [token for token, real in zip(prompt, seen, strict=True) if real]
        elif self.pad is not None:
            first = next((i for i, token in enumerate(prompt) if token != self.pad), len(prompt))
            prompt = prompt[first:]
        return tuple(token for token in prompt if token < size)


def effective(weights: Tensor) -> float:
    """The effective sample size of log-weights."""
    return float(1 / weights.softmax(0).square().sum())
