"""The hidden Markov model: parameters, operators, emissions and inference put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from trellis.config import ModelConfig, suggestion
from trellis.corpus import Vocabulary
from trellis.emissions import Categorical
from trellis.engines.reference import at_states, to_dense
from trellis.errors import TrellisError
from trellis.inference import discrete, queries
from trellis.models.chain import ChainModel
from trellis.params import PARAMS, Dropout, Dropped, Params, Support
from trellis.params.base import NOTHING
from trellis.transitions import Dense, Softmax, Transition
from trellis.types import Batch, Belief, Counts

T = TypeVar("T")
LARGEST_WRITTEN = 1 << 24  # entries of a matrix of transitions that is written out
LARGEST_BLOCKS = {"cpu": 1 << 22, "cuda": 1 << 27}  # entries of blocks that exist at a time while scoring
LARGEST_BELIEFS = 1 << 25  # entries of beliefs over all states that exist at a time while scoring


class Carried(NamedTuple):
    """What an HMM remembers: the belief after the last token, and which sequences have not begun yet."""

    belief: Belief
    fresh: Tensor  # [B] bool


class HMM(nn.Module, ChainModel):
    """p(x, z) = p(z_0) p(x_0 | z_0) prod_t p(z_t | z_{t-1}) p(x_t | z_t), with exact inference.

    `carry` says that sentences were trained as one stream, so a new sentence begins after an <eos>."""

    family = "hmm"
    visits: Tensor | None  # [K]: share of a text's tokens, see `settle`
    ending: Tensor | None  # [k]: the belief after an <eos>, at the states that may emit it

    def __init__(self, vocab: Vocabulary, params: Params, carry: bool = False, dropout: Dropout | None = None) -> None:
        super().__init__()
        self.vocab, self.params, self.carry = vocab, params, carry
        self.dropout = dropout or Dropout("none", 0.0)
        self.memory: dict[str, Any] = {}
        self.register_buffer("visits", None)
        self.register_buffer("ending", None)

    @classmethod
    def new(cls, vocab: Vocabulary, states: int, carry: bool = False, seed: int = 0, support: Support = None) -> HMM:
        """An untrained HMM with a table of parameters."""
        return cls.build(vocab, ModelConfig(states=states), carry, seed, support)

    @classmethod
    def build(cls, vocab: Vocabulary, config: ModelConfig, carry: bool, seed: int, support: Support) -> HMM:
        """The untrained HMM that a configuration describes; words start near their frequency, states apart."""
        if config.states < 1:
            raise TrellisError(f"model.states is {config.states}: an HMM needs at least one state.")
        if config.params not in PARAMS:
            raise TrellisError(
                f"model.params is {config.params!r}, which is not known{suggestion(config.params, PARAMS)}"
            )
        params = PARAMS[config.params].new(vocab.words, config, support, seed)
        frequency = torch.tensor(vocab.counts, dtype=torch.float32).add_(1.0).log_()
        params.shift_word_logits(frequency - frequency.mean())
        rates = config.dropout_rate, config.dropout_end
        features = params.num_features, config.feature_dropout
        states = params.num_states if support is None else 0
        return cls(vocab, params, carry, Dropout(config.dropout, *rates, params.partition, seed, *features, states))

    @property
    def num_states(self) -> int:
        return self.params.num_states

    def parts(self) -> tuple[Tensor, Transition, Categorical]:
        """Start [K], transition and emission, normalised."""
        return self.remembered("parts", lambda: (self.params.start(), *written(*self.params.moving(NOTHING))))

    def occupancy(self) -> Tensor:
        """The long-run share of tokens of each state, under the model itself or as `settle` found it: [K].

        A state that emits <eos> is followed by the start of a new sentence, unless the model was trained on one
        unbroken stream."""
        if self.visits is not None:
            return self.visits
        start, transition, emission = self.parts()
        ends = torch.zeros_like(start) if self.carry else emission.log_probs(self.vocab.eos).exp()
        return self.remembered("occupancy", lambda: discrete.stationary(start, transition, ends))

    @torch.no_grad()
    def settle(self, batches: Iterable[Batch]) -> None:
        """Read on a text where the model is in the long run, and after an <eos>: for so many states that iterating
        their transitions until they settle would take too long."""
        start, transition, emission = self.parts()
        visits, endings = torch.zeros_like(start, dtype=torch.float64), []
        for batch in batches:
            batch = batch.to(self.device)
            state = self.start(len(batch.tokens))
            potentials = emission.potentials(batch.tokens)
            prior = self.prior(state, start, transition, potentials.first_ids())
            probs = discrete.filter(prior, transition, potentials, batch.lengths).probs
            ids = potentials.ids
            places = ids if ids is not None else torch.arange(self.num_states, device=probs.device).expand_as(probs)
            visits.scatter_add_(0, places.flatten(), probs.flatten().double())
            endings.append(probs[(batch.tokens == self.vocab.eos) & potentials.inside(batch.lengths)])
        ending = torch.cat(endings).sum(0)
        self.visits = (visits / visits.sum()).to(start.dtype)
        self.ending = ending / ending.sum() if float(ending.sum()) > 0 else None

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
        zeros = torch.zeros(batch, self.num_states, device=self.device, dtype=next(self.params.parameters()).dtype)
        return Carried(Belief(zeros), torch.ones(batch, dtype=torch.bool, device=self.device))

    def sentence_start(self, batch: int) -> Carried:
        if not self.carry:
            return self.start(batch)
        _, _, emission = self.parts()
        going_on = torch.zeros(batch, dtype=torch.bool, device=self.device)
        if self.ending is not None:
            ids = None if emission.support is None else emission.support[self.vocab.eos].expand(batch, -1)
            return Carried(Belief(self.ending.expand(batch, -1), ids), going_on)
        belief = self.occupancy() * emission.log_probs(self.vocab.eos).exp()
        ended = (belief / belief.sum()).expand(batch, -1)
        return Carried(Belief(ended), going_on)

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
        steps, pieces = self.steps_at_once(len(tokens)), []
        for first in range(0, tokens.shape[1], steps):
            part = None if lengths is None else (lengths - first).clamp(0, steps)
            log_norms, state = self.score_piece(tokens[:, first : first + steps], state, part)
            pieces.append(log_norms)
        return torch.cat(pieces, 1) if pieces else self.params.start().new_zeros(tokens.shape), state

    def steps_at_once(self, batch: int) -> int:
        """So many steps that the blocks between their live states, or beliefs over all, stay within bounds."""
        support = self.parts()[2].support
        if support is None:
            return max(1, LARGEST_BELIEFS // (max(batch, 1) * self.num_states))
        return max(1, LARGEST_BLOCKS[self.device.type] // (max(batch, 1) * support.shape[1] ** 2))

    def score_piece(self, tokens: Tensor, state: Carried, lengths: Tensor | None) -> tuple[Tensor, Carried]:
        start, transition, emission = self.parts()
        potentials = emission.potentials(tokens)
        prior = self.prior(state, start, transition, potentials.first_ids())
        log_norms, belief = discrete.score(prior, transition, potentials, lengths)
        return log_norms, self.after(state, belief, lengths)

    def after(self, state: Carried, belief: Belief, lengths: Tensor | None) -> Carried:
        """The state after a batch: `belief`, but a sequence that had no token in it stays as it was."""
        if lengths is None or bool((lengths > 0).all()):
            return Carried(belief, torch.zeros_like(state.fresh))
        old, new = (to_dense(b, self.num_states) for b in (state.belief, belief))
        idle = lengths == 0
        return Carried(Belief(torch.where(idle.unsqueeze(-1), old, new)), state.fresh & idle)

    def forecast(self, state: Carried) -> Tensor:
        start, transition, emission = self.parts()
        return emission.predict(self.prior(state, start, transition).probs)

    def log_likelihood(self, batch: Batch, state: Carried | None) -> tuple[Tensor, Carried]:
        """log p(batch) and the state after it; in training, under a draw of dropout.

        Where the batch says that it is full, this never waits for the device."""
        dropped = (self.dropout.draw(self.params.partition) if self.training else None) or NOTHING
        transition, emission = written(*self.params.moving(dropped))
        potentials = emission.potentials(batch.tokens, all_observed=batch.equal_lengths)
        prior = self.entering(batch, state, dropped, transition, potentials.first_ids())
        lengths = None if batch.equal_lengths else batch.lengths
        log_norms, belief = discrete.score(prior, transition, potentials, lengths)
        if dropped.ids is not None:
            named = dropped.ids.expand_as(belief.probs) if belief.ids is None else dropped.ids[belief.ids]
            belief = belief._replace(ids=named)
        before = self.continued(batch, state) if lengths is not None else Carried(belief, batch.fresh)
        return log_norms.sum(dtype=torch.float64), self.after(before, belief, lengths)

    def entering(
        self, batch: Batch, state: Carried | None, dropped: Dropped, transition: Transition, ids: Tensor | None
    ) -> Belief:
        """The prior of a batch's first step, over the states that the draw keeps; a carried belief knows all states,
        and moves into the kept ones by rows that are normalised over these."""
        if state is None or batch.all_fresh or len(state.fresh) < len(batch.tokens):
            return Belief(at_states(self.params.start(dropped).expand(len(batch.tokens), -1), ids), ids)
        state = self.reset(state, batch.fresh)
        if dropped.ids is None:
            onward = discrete.move(state.belief, transition, ids)
        else:
            onward = self.enter(state.belief, dropped, ids)
        if batch.all_fresh is False:
            return Belief(onward, ids)
        begin = at_states(self.params.start(dropped).expand(len(batch.tokens), -1), ids)
        return Belief(torch.where(state.fresh.unsqueeze(-1), begin, onward), ids)

    def enter(self, belief: Belief, dropped: Dropped, ids: Tensor | None) -> Tensor:
        """The next step's distribution over kept states, at `ids` [B, k'] or all of them, after any belief."""
        probs, names = belief
        if dropped.partition is None:  # every sequence comes from the same states
            rows = torch.arange(self.num_states, device=probs.device) if names is None else names[0]
            return self.params.entry(rows, dropped).forward(probs)
        if names is None:
            names = torch.arange(self.num_states, device=probs.device).expand_as(probs)
        rows = torch.arange(names.numel(), device=probs.device).view(names.shape)
        after = torch.arange(dropped.partition.num_states, device=probs.device).expand(len(probs), -1)
        blocks = self.params.entry(names.flatten(), dropped).blocks(rows, after if ids is None else ids)
        return (probs.unsqueeze(-2) @ blocks).squeeze(-2)

    def advance(self, done: float) -> float:
        """Training has come so far, from 0 to 1; the rate of dropout follows."""
        self.dropout.advance(done)
        return self.dropout.now

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
        result = result._replace(emission=emission.collect(batch.tokens, result.emission))
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

    def settings(self) -> dict[str, Any]:
        return {"carry": self.carry, **self.params.settings()}

    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: value.detach() for name, value in self.params.state_dict().items()}
        settled = {"visits": self.visits, "ending": self.ending}
        return tensors | {f"settled.{name}": value for name, value in settled.items() if value is not None}

    def num_parameters(self) -> int:
        return sum(weight.numel() for weight in self.params.parameters())

    @classmethod
    def restore(cls, vocab: Vocabulary, settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> HMM:
        learned = {name: value for name, value in tensors.items() if not name.startswith("settled.")}
        params = PARAMS[settings.get("params", "scalar")].restore(vocab.words, settings, learned)
        model = cls(vocab, params, bool(settings["carry"])).eval()
        model.visits, model.ending = tensors.get("settled.visits"), tensors.get("settled.ending")
        return model


def written(transition: Transition, emission: Categorical) -> tuple[Transition, Categorical]:
    """The same; a softmax over few states, all of them live at every step, as the matrix that every step needs."""
    whole = emission.support is None and transition.num_states**2 <= LARGEST_WRITTEN
    return (Dense(transition.dense()) if whole and isinstance(transition, Softmax) else transition), emission
