"""The factorial HMM: several hidden chains that jointly emit words, with variational and exact inference."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from trellis.config import RunConfig
from trellis.corpus import Corpus, Vocabulary
from trellis.devices import seeded
from trellis.errors import TrellisError
from trellis.families.factorial import mean_field
from trellis.families.factorial.config import FHMMConfig
from trellis.families.factorial.joint import Joint
from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.mean_field import Chains, Field, Inferred
from trellis.families.factorial.parameters import LayeredParams
from trellis.inference import discrete
from trellis.inference.carry import Carry
from trellis.learning.base import GradientModel
from trellis.models.base import Memo, Saved
from trellis.models.chain import StateModel
from trellis.models.restoring import rebuilt
from trellis.options import choose
from trellis.transitions import Kronecker
from trellis.transitions.kronecker import digits, marginals
from trellis.types import Batch, Filtered, Posterior

MOST_JOINT_STATES = 1 << 20  # limit of exact inference
SWEEPS = 10  # coordinate ascent sweeps for posteriors and features


class FHMM(GradientModel, StateModel):
    """A factorial HMM with M layers: p(x, z) = prod_m p(z_m) prod_t p(x_t | z_t1 ... z_tM).

    Likelihoods, predictions and perplexities are exact: they are computed over joint states. Posteriors and paths are
    exact with noisy-or emissions. With log-linear emissions, they are mean-field approximations, unless you call
    `posterior(..., exact=True)`.

    Parameters
    ----------
    vocab
        The words of the model.
    params
        The parameters of all layers.
    bound
        The lower bound that EM maximises: "tilted" or "jensen".

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="fhmm", layers=2, states=3, epochs=1).model
    >>> model.num_states, model.posterior("a b").shape
    (9, (2, 6))
    """

    family = "fhmm"

    __repr__ = StateModel.__repr__

    def __init__(self, vocab: Vocabulary, params: LayeredParams, bound: str = "tilted") -> None:
        super().__init__()
        choose(mean_field.BOUNDS, bound, "model.bound")
        self.vocab, self.params, self.bound = vocab, params, bound
        self.memo = Memo(params)

    @classmethod
    def new(
        cls,
        vocab: Vocabulary,
        sizes: tuple[int, ...],
        bound: str = "tilted",
        dim: int = 0,
        seed: int = 0,
        combine: str = "log-linear",
    ) -> FHMM:
        """An untrained model with layers of `sizes` states, and random word probabilities near their frequencies."""
        params = LayeredParams(sizes, len(vocab), dim, seed, combine)
        frequency = torch.tensor(vocab.counts, dtype=torch.float32) + 1
        params.set_unigram((frequency / frequency.sum()).log())
        return cls(vocab, params, bound)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each layer."""
        return self.params.sizes

    @property
    def name(self) -> str:
        return f"fhmm-{len(self.sizes)}-{'+'.join(str(size) for size in dict.fromkeys(self.sizes))}"

    @property
    def num_states(self) -> int:
        """The number of joint states."""
        return math.prod(self.sizes)

    def chains(self) -> Chains:
        return self.params.chains()

    def emission(self) -> LogLinear:
        """The emission, after checking that its parameters are finite."""
        emission = self.params.emission()
        if not bool(emission.theta.isfinite().all() & emission.bias.isfinite().all()):
            raise TrellisError("The model has non-finite parameters; train it again with a lower train.lr.")
        return emission

    @property
    def has_bound(self) -> bool:
        """Whether the emission supports mean-field inference."""
        return self.params.combine == "log-linear"

    def check_joint(self) -> None:
        """Raise if there are too many joint states for exact inference."""
        if self.num_states > MOST_JOINT_STATES:
            raise TrellisError(
                f"The layers have {self.num_states:,} joint states, more than the limit of {MOST_JOINT_STATES:,} for "
                "exact scores; use fewer layers or states."
            )

    def exact(self) -> Joint:
        """The model over joint states, memoised until a parameter changes; recomputed when gradients are needed."""
        self.check_joint()
        return self.memo("joint", lambda: Joint.of(self.params, self.emission()))

    def start(self, batch: int) -> Carry:
        self.check_joint()
        return Carry.begin(batch, self.num_states, self.params.bias.detach())

    def reset(self, state: Carry, where: Tensor) -> Carry:
        return state.reset(where)

    def score(self, tokens: Tensor, state: Carry, lengths: Tensor | None = None) -> tuple[Tensor, Carry]:
        lengths = torch.full_like(tokens[:, 0], tokens.shape[1]) if lengths is None else lengths
        return self.exact().score(tokens, state, lengths)

    def forecast(self, state: Carry) -> Tensor:
        return self.exact().forecast(state)

    def log_likelihood(self, batch: Batch, state: None) -> tuple[Tensor, None]:
        """The exact log-likelihood of sentences, for training by gradient."""
        log_probs, _ = self.score(batch.tokens, self.start(len(batch.tokens)), batch.lengths)
        return log_probs.sum(dtype=torch.float64), None

    def infer(self, batch: Batch, sweeps: int = SWEEPS, field: Field | None = None) -> Inferred:
        """The mean field of sentences, optionally initialised from `field`; fastest if the batch is on the CPU."""
        if not self.has_bound:
            raise TrellisError(f"A {self.params.combine} emission has no mean field; use exact inference.")
        tokens, emission = batch.tokens, self.emission()
        if tokens.numel() and int(tokens.max()) >= len(self.vocab):
            raise TrellisError(f"Token {int(tokens.max())} is not among the {len(self.vocab)} words of the vocabulary.")
        return mean_field.infer(self.chains(), emission, tokens, batch.lengths, sweeps, self.bound, field)

    @torch.no_grad()
    def smooth(
        self, tokens: Tensor, lengths: Tensor | None = None, exact: bool = False, sweeps: int = SWEEPS
    ) -> Posterior:
        """The posteriors of all layers, concatenated: [B, T] -> [B, T, S].

        By default they are mean-field approximations, returned with the bound on log p(x). With `exact`, they are the
        posteriors p(z_m | x) themselves, returned with log p(x)."""
        if self.has_bound and not exact:
            result = self.infer(sentences(tokens, lengths), sweeps)
            return Posterior(result.bound, result.field.probs)
        found = discrete.smooth(*self.exact().sentences(tokens), lengths)
        return Posterior(found.log_likelihood, marginals(found.probs, self.sizes))

    @torch.no_grad()
    def filter(self, tokens: Tensor, lengths: Tensor | None = None) -> Filtered:
        """Exact filtered p(z_m | x_<=t) of every layer, concatenated: [B, T, S]."""
        found = discrete.filter(*self.exact().sentences(tokens), lengths)
        return found._replace(probs=marginals(found.probs, self.sizes))

    @torch.no_grad()
    def best_path(self, tokens: Tensor, lengths: Tensor | None = None, sweeps: int = SWEEPS) -> tuple[Tensor, Tensor]:
        """The most probable path of every layer under the mean field, [B, T, M] (-1 in the padding), and the bound on
        log p(x) [B]. With noisy-or emissions, returns the exact Viterbi path and log p(z, x)."""
        if not self.has_bound:
            path, log_prob = discrete.viterbi(*self.exact().sentences(tokens), lengths)
            layers = torch.stack(digits(path.clamp(min=0), self.sizes), -1)
            return layers.masked_fill((path < 0).unsqueeze(-1), -1), log_prob
        batch = sentences(tokens, lengths)
        result, chains = self.infer(batch, sweeps), self.chains()
        parts, ends = result.potentials.split(self.sizes, -1), batch.lengths.to(self.device)
        paths = [discrete.viterbi(*mean_field.chain(chains, m, p, ends))[0] for m, p in enumerate(parts)]
        return torch.stack(paths, -1), result.bound

    @torch.no_grad()
    def sampled_log_likelihood(
        self, tokens: Tensor, lengths: Tensor | None = None, samples: int = 100, seed: int = 0
    ) -> Tensor:
        """log p(x) of sentences by importance sampling from the mean field, for any number of joint states: [B]."""
        batch = sentences(tokens, lengths).to(self.device)
        given = self.chains(), self.emission(), batch.tokens, batch.lengths, self.infer(batch)
        generator = seeded(seed)
        return mean_field.sampled_log_likelihood(*given, samples, generator)

    def sample_tokens(self, n: int, max_tokens: int, seed: int) -> Tensor:
        return self.sample_layers(n, max_tokens, seed)[1]

    @torch.no_grad()
    def sample_layers(self, n: int, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Sample the states of every layer [n, steps, M] and the words [n, steps]."""
        generator = seeded(seed)
        layers = [
            discrete.sample_prior(start, Kronecker([transition]), n, steps, generator)
            for start, transition in zip(*self.chains(), strict=True)
        ]
        states = torch.stack(layers, -1)
        return states, self.emission().sample(states.flatten(0, 1), generator).view(n, steps)

    def settings(self) -> dict[str, Any]:
        params = self.params
        return {"sizes": list(self.sizes), "dim": params.dim, "bound": self.bound, "combine": params.combine}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.params.state_dict().items()}

    @classmethod
    def restore(cls, saved: Saved) -> FHMM:
        vocab, settings, tensors, _ = saved
        sizes, dim, combine = settings["sizes"], int(settings["dim"]), settings["combine"]
        params = rebuilt(lambda: LayeredParams(sizes, len(vocab), dim, combine=combine), tensors)
        model = cls(vocab, params, settings["bound"]).eval()
        model.emission()
        return model


def sentences(tokens: Tensor, lengths: Tensor | None) -> Batch:
    """A batch of sentences [B, T] without an earlier mean field. Without `lengths`, all have length T."""
    lengths = torch.full_like(tokens[:, 0], tokens.shape[1]) if lengths is None else lengths
    return Batch(tokens, lengths, torch.ones_like(lengths, dtype=torch.bool), all_fresh=True)


def build(run: RunConfig, corpus: Corpus) -> FHMM:
    """The untrained model of a run."""
    config = cast(FHMMConfig, run.model)
    dim = config.dim if config.params == "neural" else 0
    model = FHMM.new(corpus.vocab, config.sizes, config.bound, dim, run.seed, config.combine)
    model.check_joint()
    return model
