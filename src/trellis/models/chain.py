"""Sentence queries of models with hidden states: posteriors, Viterbi paths, samples, infilling."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trellis.constraints import Constraint
from trellis.corpus import GAP
from trellis.devices import Draws, check_integer, check_memory, seeded
from trellis.emissions.classed import Likelihoods
from trellis.errors import TrellisError
from trellis.inference import discrete, queries
from trellis.inference.infilling import best_words
from trellis.models.base import Infilled, LanguageModel, Path
from trellis.models.conditioned import MOST_SAMPLES, ConditionedChain
from trellis.models.text import Text, in_batches, rows_of, sentences_of
from trellis.transitions import Transition
from trellis.types import Belief, Filtered, Posterior, Potentials


class StateModel(LanguageModel):
    """A language model with one or more layers of hidden states; `sizes` is the number of states of each layer."""

    embed_kinds: ClassVar = {
        "posterior": lambda model, tokens, lengths: model.smooth(tokens, lengths).probs,
        "filtered": lambda model, tokens, lengths: model.filter(tokens, lengths).probs,
        "viterbi": lambda model, tokens, lengths: model.indicators(tokens, lengths),
    }

    smooth: Any  # (tokens [B, T], lengths) -> Posterior: p(z_t | x) of every layer
    filter: Any  # ... -> Filtered: p(z_t | x_<=t)
    best_path: Any  # ... -> the most probable states [B, T] or [B, T, M], and log p(z, x) [B]

    def indicators(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The Viterbi paths of sentences as one-hot vectors, layers concatenated: [B, T, number of states]."""
        path = self.best_path(tokens, lengths)[0].clamp(min=0).view(*tokens.shape, len(self.sizes))
        layers = zip(path.unbind(-1), self.sizes, strict=True)
        return torch.cat([torch.nn.functional.one_hot(states, size) for states, size in layers], -1)

    def posterior(self, text: Text, complete: bool = True, **options: Any) -> np.ndarray | list[np.ndarray]:
        return rows_of(self, text, lambda tokens, lengths: self.smooth(tokens, lengths, **options).probs, complete)

    def viterbi(self, text: Text, complete: bool = True, **options: Any) -> Path | list[Path]:
        given = sentences_of(self, text)

        def paths(tokens: Tensor, lengths: Tensor) -> Iterable[Path]:
            states, log_probs = self.best_path(tokens, lengths, **options)
            return map(Path, states.cpu().numpy(), log_probs.tolist())

        read = given if complete else given.never_empty(self.vocab.eos)
        found = zip(in_batches(self, read, paths, complete), given.sentences, strict=True)
        return given.answer(
            [Path(path.states[: len(ids)], path.log_prob if complete or ids.size else 0.0) for path, ids in found]
        )


class GapModel(LanguageModel):
    """A language model that fills gaps in sentences."""

    fill: Any  # (tokens [B, T], lengths [B], n, samples, seed) -> an `Infilled` for each sentence

    def infill(
        self, text: Text, n: int = 10, samples: int = 3, seed: int = 0, complete: bool = False
    ) -> Infilled | list[Infilled]:
        check_integer(n, "number of words", least=0)
        check_integer(samples, "number of samples", most=MOST_SAMPLES)
        given = sentences_of(self, text, GAP)
        kept = [ids for ids in given.sentences if ids.size]
        full = next((ids for ids in kept if (ids >= 0).all()), None)
        if full is not None:
            raise TrellisError(f"The text {self.written(full)!r} has no gap; write {GAP} for each missing word.")

        values = samples * max((len(ids) for ids in kept), default=0) * self.num_states
        check_memory(4 * values, f"Sampling {samples:,} completions", "sample fewer, with another seed each time")
        fill = partial(self.fill, n=n, samples=samples, seed=seed)
        found = iter(in_batches(self, given._replace(sentences=kept), fill, complete, samples))
        nothing = Infilled([], "", [""] * samples, float(self.log_prob("")) if complete else 0.0, proved=True)
        return given.answer([next(found) if ids.size else nothing for ids in given.sentences])

    def written(self, ids: np.ndarray) -> str:
        """The text of a sentence, with a mark for each gap."""
        return self.vocab.join([GAP if i < 0 else self.vocab.words[i] for i in ids])

    def check_possible(self, impossible: Tensor, tokens: Tensor, lengths: Tensor) -> None:
        """Raise if any sentence selected by the mask [B] has probability zero, whatever fills its gaps."""
        if bool(impossible.any()):
            row = int(impossible.nonzero()[0])
            shown = self.written(tokens[row, : lengths[row]].cpu().numpy())
            raise TrellisError(f"The sentence {shown!r} has probability zero under the model, whatever fills its gaps.")


class ChainModel(GapModel, StateModel):
    """A language model with a single chain of `num_states` hidden states."""

    @property
    @abstractmethod
    def num_states(self) -> int: ...

    @property
    def sizes(self) -> tuple[int]:
        return (self.num_states,)

    @abstractmethod
    def chain(self, batch: int = 1) -> queries.Chain:
        """The start distribution, transition and emission for `batch` new sentences."""

    @torch.no_grad()
    def likelihoods(self) -> Likelihoods:
        """p(word | state), for constraints."""
        return Likelihoods.of(self.chain().emission)

    @torch.no_grad()
    def smooth(self, tokens: Tensor, lengths: Tensor | None = None) -> Posterior:
        """Smoothed posteriors p(state | sentence) at every token of sentences [B, T], over all states."""
        return discrete.smooth(*self.observed(tokens), lengths)

    @torch.no_grad()
    def filter(self, tokens: Tensor, lengths: Tensor | None = None) -> Filtered:
        """Filtered posteriors p(state | tokens so far) at every token of sentences [B, T], over all states."""
        return discrete.filter(*self.observed(tokens), lengths)

    def observed(self, tokens: Tensor) -> tuple[Belief, Transition, Potentials]:
        """The start distribution, transition and emission potentials of new sentences [B, T], over all states."""
        prior, transition, emission, _ = self.chain(len(tokens))
        return prior, transition, emission.potentials(tokens).widen(self.num_states)

    @torch.no_grad()
    def best_path(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The Viterbi paths [B, T] of sentences, and log p(path, words) [B]."""
        chain = self.chain(len(tokens))
        return discrete.viterbi(chain.prior, chain.transition, chain.emission.potentials(tokens), lengths)

    @torch.no_grad()
    def sample_tokens(self, n: int, max_tokens: int, seed: int) -> Tensor:
        generator = seeded(seed)
        chain = self.chain()
        states = discrete.sample_prior(chain.prior.probs[0], chain.transition, n, max_tokens, generator)
        return chain.emission.sample(states, generator)

    @torch.no_grad()
    def fill(self, tokens: Tensor, lengths: Tensor, n: int, samples: int, seed: int) -> list[Infilled]:
        """Fill the gaps (-1) in sentences [B, T]. The samples of a sentence do not depend on the rest of its batch."""
        words = torch.arange(len(self.vocab), device=self.device) != self.vocab.eos
        chain = self.chain(len(tokens)).only(words)
        self.check_possible(queries.log_marginal(chain, tokens, lengths) == -torch.inf, tokens, lengths)
        given = queries.gap_words(chain, tokens, lengths)
        best = best_words(chain, tokens, lengths, given.argmax(-1))
        many, ends = (values.repeat_interleave(samples, 0) for values in (tokens, lengths))
        draws = Draws(seed, lengths.tolist(), samples)
        drawn = queries.sample_gaps(self.chain(len(many)).only(words), many, ends, draws).view(len(tokens), samples, -1)
        gaps = iter(given)
        return [
            Infilled(
                [self.rank(next(gaps), n) for _ in range(int((tokens[row, :length] < 0).sum()))],
                self.sentences(best.tokens[row : row + 1, :length])[0],
                self.sentences(drawn[row, :, :length]),
                float(best.log_probs[row]),
                bool(best.proved[row]),
            )
            for row, length in enumerate(lengths.tolist())
        ]

    def constrain(
        self, constraint: Constraint, least: int = 0, most: int | None = None, complete: bool = True
    ) -> ConditionedChain:
        return ConditionedChain.several(self, [constraint], least, most, complete)[0]

    def constrain_each(
        self, constraints: Sequence[Constraint], least: int = 0, most: int | None = None, complete: bool = True
    ) -> list[ConditionedChain]:
        """Like `constrain`, for several constraints. Preparing them together is faster than one by one."""
        if isinstance(constraints, Constraint) or not isinstance(constraints, Iterable):
            raise TrellisError(f"Pass a list of constraints, not {constraints!r}.")
        given = list(constraints)
        if not given:
            raise TrellisError("Pass at least one constraint.")
        return ConditionedChain.several(self, given, least, most, complete)
