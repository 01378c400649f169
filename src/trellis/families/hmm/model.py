"""The hidden Markov model."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from trellis.config import RunConfig
from trellis.corpus import Corpus, Split, Streams, Vocabulary
from trellis.devices import check_integer, total_memory
from trellis.emissions import Partition
from trellis.emissions.classed import Likelihoods
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.lattice import sentence_trellis
from trellis.families.hmm.parameters import Draw, Dropout, Params, SavedParams, Support, TableParams
from trellis.families.hmm.parameters.base import WHOLE, find_params
from trellis.families.hmm.parameters.contexts import MOST_TOKENS, context_states, initialise
from trellis.families.hmm.parameters.support import SUPPORTS
from trellis.families.hmm.states import estimate_long_run, summarise_states
from trellis.inference import discrete, queries
from trellis.inference.carry import Carry, training_prior
from trellis.inference.stationary import with_restarts
from trellis.learning.base import GradientModel
from trellis.learning.em import expect
from trellis.models.base import Memo, Saved, StateSummary
from trellis.models.chain import ChainModel
from trellis.models.restoring import check_distribution
from trellis.models.text import Text
from trellis.parts import Parts
from trellis.report.trellis import Trellis
from trellis.transitions import Dense, Softmax, stripes
from trellis.types import Batch, Belief, Counts

LARGEST_WRITTEN = 1 << 24  # maximum entries of a dense transition matrix on a CPU
WRITTEN_SHARE = 32  # bytes of a GPU's memory for each entry of such a matrix
LARGEST_BLOCKS = {"cpu": 1 << 22, "cuda": 1 << 29}  # maximum entries of transition blocks in memory while scoring
BLOCKS_SHARE = 256  # on a GPU, also at most one entry for this many bytes of its memory
OCCUPANCY_LANES, OCCUPANCY_WINDOW, OCCUPANCY_BATCHES = 16, 64, 64  # of the text: streams, tokens per window, windows
LARGEST_BELIEFS = 1 << 25  # maximum entries of state distributions in memory while scoring
FEW = 0.1  # share of the state embeddings; if a step reads more, fetching them takes longer than updating all
SETTLED = "settled."  # prefix of the saved long-run distributions


class HMM(GradientModel, ChainModel):
    """A hidden Markov model over words, with exact inference: p(x, z) = prod_t p(z_t | z_{t-1}) p(x_t | z_t).

    Parameters
    ----------
    vocab
        The words of the model.
    params
        The parameters, which give start, transition and emission.
    carry
        Whether the model was trained on a stream of sentences. If so, sentences in queries start from the long-run
        state distribution after an <eos>, otherwise from the start distribution.
    dropout
        The dropout of states during training; None: none.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, states=4, epochs=1).model
    >>> model.posterior("a b b").sum(1).round(3)
    array([1., 1., 1.], dtype=float32)
    """

    family = "hmm"
    visits: Tensor | None  # [K]: occupancy, if estimated by `estimate_long_run`
    ending: Tensor | None  # [k]: the distribution after an <eos>, over the states that can emit it

    __repr__ = ChainModel.__repr__

    def __init__(self, vocab: Vocabulary, params: Params, carry: bool = False, dropout: Dropout | None = None) -> None:
        super().__init__()
        self.vocab, self.params, self.carry = vocab, params, carry
        self.dropout = dropout or Dropout("none", 0.0)
        self.memo, self.drawn, self.rough = Memo(params), WHOLE, params.rough
        self.register_buffer("visits", None)
        self.register_buffer("ending", None)

    @classmethod
    def new(cls, vocab: Vocabulary, states: int, carry: bool = False, seed: int = 0, support: Support = None) -> HMM:
        """An untrained HMM with table parameters."""
        return cls.build(vocab, HMMConfig(states=states), carry, seed, support)

    @classmethod
    def build(cls, vocab: Vocabulary, config: HMMConfig, carry: bool, seed: int, support: Support) -> HMM:
        """The untrained HMM of a configuration, with word probabilities near their frequencies."""
        if config.states < 1:
            raise TrellisError("model.states is auto, which only `trellis.train` resolves; set it to at least 1.")
        params = find_params(config.params).new(vocab.words, config, support, seed)
        frequency = torch.tensor(vocab.counts, dtype=torch.float32).add_(1.0).log_()
        params.shift_word_logits(frequency - frequency.mean())
        rates = config.dropout_rate, config.dropout_end
        features = params.num_features, config.feature_dropout
        states = params.num_states if support is None else 0
        return cls(vocab, params, carry, Dropout(config.dropout, *rates, params.partition, seed, *features, states))

    @property
    def num_states(self) -> int:
        return self.params.num_states

    def parts(self) -> Parts:
        """Start [K], transition and emission, normalised."""
        return self.memo("parts", lambda: written_out(self.params.parts()).started())

    def occupancy(self) -> Tensor:
        """Stationary state occupancy [K], computed from the model or estimated from a text.

        A state that emits <eos> is followed by the start of a new sentence, unless the model was trained on a
        continuous stream."""
        if self.visits is not None:
            return self.visits
        start, transition, emission = self.parts()
        ends = torch.zeros_like(start) if self.carry else emission.log_probs(self.vocab.eos).exp()
        return self.memo("occupancy", lambda: with_restarts(start, transition, ends))

    def start(self, batch: int) -> Carry:
        return Carry.begin(batch, self.num_states, next(self.params.parameters()).detach())

    def sentence_start(self, batch: int) -> Carry:
        if not self.carry:
            return self.start(batch)
        emission = self.parts().emission
        going_on = torch.zeros(batch, dtype=torch.bool, device=self.device)
        if self.ending is not None:
            ids = None if emission.support is None else emission.support[self.vocab.eos].expand(batch, -1)
            return Carry(Belief(self.ending.expand(batch, -1), ids), going_on)
        belief = self.occupancy() * emission.log_probs(self.vocab.eos).exp()
        return Carry(Belief((belief / belief.sum()).expand(batch, -1)), going_on)

    def reset(self, state: Carry, where: Tensor) -> Carry:
        return state.reset(where)

    def continued(self, batch: Batch, state: Carry | None) -> Carry:
        """The state distribution before each sequence of a batch: carried over, or reset to the start of a text."""
        if state is None or len(state.fresh) < len(batch.tokens):
            return self.start(len(batch.tokens))
        return state.reset(batch.fresh)

    def score(self, tokens: Tensor, state: Carry, lengths: Tensor | None = None) -> tuple[Tensor, Carry]:
        start, transition, emission = self.parts()
        steps, pieces = steps_at_once(self.parts(), len(tokens), self.device), []
        for first in range(0, tokens.shape[1], steps):
            left = None if lengths is None else (lengths - first).clamp(0, steps)
            potentials = emission.potentials(tokens[:, first : first + steps])
            prior = state.prior(start, transition, potentials.first_ids())
            log_norms, belief = discrete.score(prior, transition, potentials, left)
            state = state.after(belief, left, self.num_states)
            pieces.append(log_norms)
        return torch.cat(pieces, 1) if pieces else start.new_zeros(tokens.shape), state

    def forecast(self, state: Carry) -> Tensor:
        start, transition, emission = self.parts()
        return emission.predict(state.prior(start, transition).probs)

    def touched_rows(self) -> dict[nn.Parameter, Tensor]:
        return self.params.touched_rows(self.drawn)

    def sparsely_read(self) -> list[nn.Parameter]:
        """The state embeddings, if dropout keeps few states, but so many that their normalisers are divided too."""
        least, most = sorted(1 - rate for rate in (self.dropout.rate, self.dropout.end))
        few = self.dropout.kind == "state" and most <= FEW and least * self.num_states >= stripes.FEWEST
        return [*self.params.touched_rows(Draw(torch.arange(0)))] if few else []

    def log_likelihood(self, batch: Batch, state: Carry | None) -> tuple[Tensor, Carry]:
        """log p(batch) and the state distribution after the batch; in training, under a dropout sample of the model.

        Does not synchronise with the device if all sequences have equal lengths."""
        self.drawn = draw = (self.dropout.draw(self.params.partition) if self.training else None) or WHOLE
        self.fetch(self.touched_rows())
        parts = written_out(self.params.parts(draw))
        potentials = parts.emission.potentials(batch.tokens, all_observed=batch.equal_lengths)
        prior = training_prior(state, parts, batch, potentials.first_ids())
        lengths = None if batch.equal_lengths else batch.lengths
        log_norms, belief = discrete.score(prior, parts.transition, potentials, lengths)
        if parts.kept is not None:
            named = parts.kept.expand_as(belief.probs) if belief.ids is None else parts.kept[belief.ids]
            belief = belief._replace(ids=named)
        before = self.continued(batch, state) if lengths is not None else Carry(belief, batch.fresh)
        return log_norms.sum(dtype=torch.float64), before.after(belief, lengths, self.num_states)

    @property
    def anneals(self) -> bool:
        return self.dropout.anneals

    def advance(self, done: float) -> float:
        """Set the dropout rate for the fraction of training that is done, and return the rate."""
        self.dropout.advance(done)
        return self.dropout.now

    @torch.no_grad()
    def counts(self, batch: Batch, state: Carry | None) -> tuple[Counts, Carry]:
        """Expected sufficient statistics of a batch for EM, and the state distribution after the batch."""
        return expect(self.parts(), batch.tokens, batch.lengths, self.continued(batch, state))

    def state_to_tensors(self, state: Carry) -> dict[str, Tensor]:
        return state.tensors()

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Carry:
        return Carry.from_tensors(tensors)

    def chain(self, batch: int = 1) -> queries.Chain:
        """The chain (prior, transition, emission) of `batch` new sentences."""
        start, transition, emission = self.parts()
        return queries.Chain(self.sentence_start(batch).prior(start, transition), transition, emission)

    @torch.no_grad()
    def likelihoods(self) -> Likelihoods:
        return self.memo("likelihoods", super().likelihoods)

    def states(self, n: int = 10, words: int = 8) -> list[StateSummary]:
        sizes = check_integer(n, "number of states"), check_integer(words, "number of words", least=0)
        return summarise_states(self, *sizes)

    def draw(self, text: Text) -> Trellis:
        return sentence_trellis(self, text)

    def finish(self, train: Split) -> None:
        """Estimate the occupancy of the states from the training text, unless parameters are dense tables."""
        if not isinstance(self.params, TableParams):
            batches = Streams(train, OCCUPANCY_LANES, OCCUPANCY_WINDOW)
            self.visits, self.ending = estimate_long_run(self, islice(batches, OCCUPANCY_BATCHES))

    def settings(self) -> dict[str, Any]:
        if not isinstance(self.params, SavedParams):
            raise TrellisError("An HMM built from given parts cannot be saved; save the tensors of its parts instead.")
        return {"carry": self.carry, **self.params.settings()}

    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: value.detach() for name, value in self.params.state_dict().items()}
        settled = {"visits": self.visits, "ending": self.ending}
        return tensors | {f"{SETTLED}{name}": value for name, value in settled.items() if value is not None}

    def num_parameters(self) -> int:
        return sum(weight.numel() for weight in self.params.parameters())

    @classmethod
    def check_saved(cls, saved: Saved) -> None:
        super().check_saved(saved)
        for name, probs in saved.tensors.items():
            if name.startswith(SETTLED):
                check_distribution(name, probs)

    @classmethod
    def restore(cls, saved: Saved) -> HMM:
        vocab, settings, tensors, _ = saved
        learned = {name: value for name, value in tensors.items() if not name.startswith(SETTLED)}
        params = find_params(settings["params"]).restore(vocab.words, settings, learned)
        model = cls(vocab, params, bool(settings["carry"])).eval()
        dtype = next(params.parameters()).dtype
        settled = {name: value.to(dtype) for name, value in tensors.items() if name not in learned}
        model.visits, model.ending = settled.get(f"{SETTLED}visits"), settled.get(f"{SETTLED}ending")
        live = params.num_states if params.support is None else params.support.shape[1]
        live = live if params.partition is None else params.partition.live
        if any(p is not None and len(p) != n for p, n in ((model.visits, params.num_states), (model.ending, live))):
            raise ValueError("the long-run distributions do not match the states")
        return model


def build(run: RunConfig, corpus: Corpus) -> HMM:
    """The untrained HMM of a run."""
    config, carry = cast(HMMConfig, run.model), run.batches.order != "sentences"
    if config.init == "contexts":
        return build_from_contexts(config, corpus, carry, run.seed)
    support = SUPPORTS[config.emission](corpus, config, run.seed)
    return HMM.build(corpus.vocab, config, carry, run.seed, support)


def build_from_contexts(config: HMMConfig, corpus: Corpus, carry: bool, seed: int) -> HMM:
    """An HMM with cloned states, whose initial transitions are those between contexts of the text. A word with few
    useful contexts has fewer states than others."""
    words = len(corpus.vocab)
    tokens = corpus["train"].tokens[:MOST_TOKENS]
    states, sizes = context_states(tokens, words, max(1, config.states // words))
    partition = Partition(torch.arange(words), sizes.tolist())
    model = HMM.build(corpus.vocab, replace(config, states=partition.num_states), carry, seed, partition)
    initialise(cast(TableParams, model.params), partition, states)
    return model


def written_out(parts: Parts) -> Parts:
    """Replace a softmax transition by a dense one, if all states are live at every step and the matrix is small."""
    moves = parts.transition
    if parts.emission.has_support or not isinstance(moves, Softmax):
        return parts
    if parts.num_states**2 > largest_written(moves.device):
        return parts
    recorded = torch.is_grad_enabled() and moves.trained and moves.mask is None
    matrix = moves.matrix if recorded else moves.dense()
    return Parts(parts.given_start, Dense(matrix), parts.emission, parts.entry, parts.kept)


def largest_written(device: torch.device) -> int:
    """The maximum entries of a dense transition matrix."""
    return total_memory(str(device)) // WRITTEN_SHARE if device.type == "cuda" else LARGEST_WRITTEN


def steps_at_once(parts: Parts, batch: int, device: torch.device) -> int:
    """The number of steps for which transition blocks, or full state distributions, fit into the memory limits."""
    support = parts.emission.support
    if support is None:
        return max(1, LARGEST_BELIEFS // (max(batch, 1) * parts.num_states))
    most = LARGEST_BLOCKS[device.type]
    most = min(most, total_memory(str(device)) // BLOCKS_SHARE) if device.type == "cuda" else most
    return max(1, most // (max(batch, 1) * support.shape[1] ** 2))
