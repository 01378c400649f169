"""The hidden Markov model: parameters, operators, emissions and inference put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from trellis.corpus import GAP, Vocabulary
from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.inference import discrete, queries
from trellis.kernels.scan.naive import at_states, spread
from trellis.models.base import LanguageModel, Ranked
from trellis.operators import Transition
from trellis.params import TableParams
from trellis.types import Batch, Belief, Counts, Filtered, Posterior

T = TypeVar("T")


class Carried(NamedTuple):
    """What an HMM remembers: the belief after the last token, and which sequences have not begun yet."""

    belief: Belief
    fresh: Tensor  # [B] bool


class Infilled(NamedTuple):
    """A sentence with gaps, completed."""

    gaps: list[Ranked]  # for each gap, its most probable words given everything else
    best: str  # the words of the single most probable (states, words)
    samples: list[str]  # drawn jointly from the posterior


class HMM(nn.Module, LanguageModel):
    """p(x, z) = p(z_0) p(x_0 | z_0) prod_t p(z_t | z_{t-1}) p(x_t | z_t), with exact inference.

    `carry` says that sentences were trained as one stream, so a new sentence begins after an <eos>."""

    family = "hmm"

    def __init__(self, vocab: Vocabulary, params: TableParams, carry: bool = False) -> None:
        super().__init__()
        self.vocab, self.params, self.carry = vocab, params, carry
        self.memory: dict[str, Any] = {}

    @classmethod
    def new(
        cls, vocab: Vocabulary, states: int, carry: bool = False, seed: int = 0, support: Tensor | None = None
    ) -> HMM:
        """An untrained HMM with a table of parameters; words start near their frequency, states apart."""
        if states < 1:
            raise TrellisError(f"model.states is {states}: an HMM needs at least one state.")
        params = TableParams(states, len(vocab), support, seed=seed)
        frequency = torch.tensor(vocab.counts, dtype=torch.float32).add_(1.0).log_()
        with torch.no_grad():
            params.emission_logits.add_(frequency[:, None] - frequency.mean())
        return cls(vocab, params, carry)

    @property
    def num_states(self) -> int:
        return self.params.num_states

    def parts(self) -> tuple[Tensor, Transition, Categorical]:
        """Start [K], transition and emission, normalised."""
        return self.remembered("parts", lambda: (self.params.start(), self.params.transition(), self.params.emission()))

    def occupancy(self) -> Tensor:
        """The long-run share of tokens of each state under the model itself: [K].

        A state that emits <eos> is followed by the start of a new sentence, unless the model was trained on one
        unbroken stream."""
        start, transition, emission = self.parts()
        ends = torch.zeros_like(start) if self.carry else emission.dense()[self.vocab.eos].exp()
        return self.remembered("occupancy", lambda: discrete.stationary(start, transition, ends))

    def remembered(self, name: str, compute: Callable[[], T]) -> T:
        """What `compute` gives, kept until a parameter changes; computed afresh where gradients are asked for."""
        if torch.is_grad_enabled():
            return compute()
        version = tuple((p._version, p.data_ptr()) for p in self.params.parameters())
        if self.memory.get("version") != version:
            self.memory = {"version": version}
        if name not in self.memory:
            self.memory[name] = compute()
        return cast(T, self.memory[name])

    def start(self, batch: int) -> Carried:
        zeros = torch.zeros(batch, self.num_states, device=self.device, dtype=self.params.start_logits.dtype)
        return Carried(Belief(zeros), torch.ones(batch, dtype=torch.bool, device=self.device))

    def sentence_start(self, batch: int) -> Carried:
        if not self.carry:
            return self.start(batch)
        _, _, emission = self.parts()
        belief = self.occupancy() * emission.dense()[self.vocab.eos].exp()
        ended = (belief / belief.sum()).expand(batch, -1)
        return Carried(Belief(ended), torch.zeros(batch, dtype=torch.bool, device=self.device))

    def reset(self, state: Carried, where: Tensor) -> Carried:
        probs, ids = (None if value is None else value[: len(where)] for value in state.belief)
        return Carried(Belief(cast(Tensor, probs), ids), state.fresh[: len(where)] | where)

    def prior(self, state: Carried, start: Tensor, transition: Transition, ids: Tensor | None = None) -> Belief:
        """The distribution of the next state at the live states `ids` [B, k], or at all of them: [B, K]."""
        begin = at_states(start.expand(len(state.fresh), -1), ids)
        if bool(state.fresh.all()):
            return Belief(begin, ids)
        onward = discrete.move(state.belief, transition, ids)
        return Belief(torch.where(state.fresh.unsqueeze(-1), begin, onward), ids)

    def score(self, tokens: Tensor, state: Carried, lengths: Tensor | None = None) -> tuple[Tensor, Carried]:
        start, transition, emission = self.parts()
        potentials = emission.potentials(tokens)
        prior = self.prior(state, start, transition, potentials.first_ids())
        log_norms, belief = discrete.score(prior, transition, potentials, lengths)
        return log_norms, self.after(state, belief, lengths)

    def after(self, state: Carried, belief: Belief, lengths: Tensor | None) -> Carried:
        """The state after a batch: `belief`, but a sequence that had no token in it stays as it was."""
        if lengths is None or bool((lengths > 0).all()):
            return Carried(belief, torch.zeros_like(state.fresh))
        old, new = (spread(b, self.num_states) for b in (state.belief, belief))
        idle = lengths == 0
        return Carried(Belief(torch.where(idle.unsqueeze(-1), old, new)), state.fresh & idle)

    def forecast(self, state: Carried) -> Tensor:
        start, transition, emission = self.parts()
        return emission.predict(self.prior(state, start, transition).probs)

    def loss(self, batch: Batch, state: Carried | None) -> tuple[Tensor, int, Carried]:
        """log p(batch), its tokens, and the state after it."""
        state = self.continued(batch, state)
        log_norms, state = self.score(batch.tokens, state, batch.lengths)
        return log_norms.sum(dtype=torch.float64), int(batch.lengths.sum()), state

    def continued(self, batch: Batch, state: Carried | None) -> Carried:
        """The state before a batch: carried on, or begun anew where the batch says so or has more sequences."""
        if state is None or len(state.fresh) < len(batch.tokens):
            return self.start(len(batch.tokens))
        return self.reset(state, batch.fresh)

    @torch.no_grad()
    def counts(self, batch: Batch, state: Carried | None) -> tuple[Counts, Carried]:
        """Expected statistics of a batch for EM, and the state after it."""
        state = self.continued(batch, state)
        start, transition, emission = self.parts()
        potentials = emission.potentials(batch.tokens)
        prior = self.prior(state, start, transition, potentials.first_ids())
        result, belief = discrete.counts(prior, transition, potentials, batch.lengths, state.belief, state.fresh)
        return result, self.after(state, belief, batch.lengths)

    def state_to_tensors(self, state: Carried) -> dict[str, Tensor]:
        tensors = {"probs": state.belief.probs, "fresh": state.fresh}
        return tensors if state.belief.ids is None else tensors | {"ids": state.belief.ids}

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Carried:
        return Carried(Belief(tensors["probs"], tensors.get("ids")), tensors["fresh"])

    def chain(self, batch: int = 1) -> queries.Chain:
        """The chain of `batch` new sentences."""
        start, transition, emission = self.parts()
        return queries.Chain(self.prior(self.sentence_start(batch), start, transition), transition, emission)

    @torch.no_grad()
    def posterior(self, tokens: Tensor) -> Posterior:
        """p(z_t | x) of sentences [B, T], over all states."""
        chain = self.chain(len(tokens))
        potentials = chain.emission.potentials(tokens).widen(self.num_states)
        return discrete.smooth(chain.prior, chain.transition, potentials)

    @torch.no_grad()
    def filtered(self, tokens: Tensor) -> Filtered:
        """p(z_t | x_<=t) of sentences [B, T], over all states."""
        chain = self.chain(len(tokens))
        potentials = chain.emission.potentials(tokens).widen(self.num_states)
        return discrete.filter(chain.prior, chain.transition, potentials)

    @torch.no_grad()
    def best_path(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable states [B, T] of sentences and log p(z, x) [B]."""
        chain = self.chain(len(tokens))
        return discrete.mode(chain.prior, chain.transition, chain.emission.potentials(tokens))

    @torch.no_grad()
    def sample(self, n: int = 1, max_tokens: int = 100, seed: int = 0) -> list[str]:
        """n sentences by ancestral sampling, each up to its end or max_tokens."""
        generator = torch.Generator(self.device).manual_seed(seed)
        chain = self.chain()
        states = discrete.sample_prior(chain.prior.probs[0], chain.transition, n, max_tokens, generator)
        return self.sentences(chain.emission.sample(states, generator))

    @torch.no_grad()
    def infill(self, text: str, n: int = 10, samples: int = 3, seed: int = 0, whole: bool = False) -> Infilled:
        """Complete a sentence whose missing words (never <eos>) are written ___; `whole`: it ends with the text."""
        tokens = self.encode_line(text, eos=whole, gap=GAP)
        gaps = (tokens[0] < 0).nonzero().flatten().tolist()
        if not gaps:
            raise TrellisError(f"The text {text!r} has no gap; write {GAP} for each missing word.")
        words = torch.arange(len(self.vocab), device=self.device) != self.vocab.eos
        chain = self.chain().only(words)
        if not bool(queries.log_marginal(chain, tokens) > -torch.inf):
            raise TrellisError(f"The model gives {text!r} no probability, whatever is in its gaps.")
        given = queries.word_given_rest(chain, tokens)[0]
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = queries.sample_gaps(self.chain(samples).only(words), tokens.expand(samples, -1), generator=generator)
        best, _ = queries.best_gaps(chain, tokens)
        return Infilled([self.rank(given[t], n) for t in gaps], self.sentences(best)[0], self.sentences(drawn))

    def settings(self) -> dict[str, Any]:
        return {"states": self.num_states, "carry": self.carry}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.params.state_dict().items()}

    @classmethod
    def restore(cls, vocab: Vocabulary, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> HMM:
        params = TableParams(int(settings["states"]), len(vocab), tensors.get("support"))
        params.to(tensors["start_logits"].dtype).load_state_dict(tensors)
        return cls(vocab, params, bool(settings["carry"])).eval()
