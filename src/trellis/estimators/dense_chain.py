"""The chain of a DenseHMM: start and transitions parameterised by embeddings, with any emission."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions import Emission
from trellis.errors import InputError
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import one_of
from trellis.estimators.inputs import Array, Observations
from trellis.families.hmm.parameters.embedding import EmbeddingParams, stack_counts
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.learning.descent import OPTIMIZERS
from trellis.parts import Parts, Prior
from trellis.transitions import Dense, Transition
from trellis.types import Counts

CHAIN = {"u": "u_", "z": "z_", "s": "z_start_"}


class DenseParts(Parts):
    """Parts with the embeddings that parameterise them."""

    def __init__(self, vectors: Mapping[str, Tensor], start: Tensor, transition: Transition, emission: Emission):
        super().__init__(start, transition, emission)
        self.vectors = vectors


@dataclass(repr=False, eq=False)
class DenseChain(BaseHMM):
    """Start and transitions parameterised by embeddings: A[i, j] ∝ k(z_i, u_j), pi[i] ∝ k(z_start, u_i).

    Fitted embeddings: `u_`, `z_` [K, l] and `z_start_` [l]; `startprob_` and `transmat_` are computed from them."""

    n_dims: int = 2
    _: KW_ONLY
    kernel: str = "softmax"
    optimizer: str = "adam"
    learning_rate: float = 0.01
    mstep_epochs: int = 25

    unsupported: ClassVar[tuple[str, ...]] = (
        *("transmat_mask", "startprob_mask"),
        *("tied_transitions", "frozen_transitions"),
    )

    @property
    def state_embeddings_(self) -> Array:
        """The embeddings of each state, concatenated: u, z and, if emissions have embeddings too, w: [K, 2 l + l']."""
        return np.concatenate([getattr(self, name) for letter, name in self._vectors().items() if letter in "uzw"], 1)

    def free_parameters(self) -> dict[str, int]:
        """The size of the trained embeddings and emission attributes, by letter of `params`."""
        return {c: int(np.size(getattr(self, name))) for c, name in self.letters.items() if c in self.params}

    def _maximise(self, models: Sequence[Parts], counts: Sequence[Counts], prior: Prior) -> list[Parts]:
        """The M-step of all restarts in one gradient descent."""
        module = self._module([cast(DenseParts, parts).vectors for parts in models])
        descent = self.mstep_epochs, self.optimizer, self.learning_rate, self._roles(self.params)
        module.maximise(stack_counts(counts), prior, *descent)
        emissions = [self._next_emission(*pair) for pair in zip(models, counts, strict=True)]
        return self._unpack(module, emissions)

    def _prior(self) -> Prior:
        states = self.n_components
        start = self._prior_tensor("startprob_prior", (states,)) - 1
        transition = self._prior_tensor("transmat_prior", (states, states)) - 1
        return Prior(start, transition + self._stickiness(), self._composed_prior())

    def _next_emission(self, parts: Parts, counts: Counts) -> Emission:
        """The M-step of an emission that is not parameterised by embeddings."""
        prior = self._emission_prior()
        if prior is None:
            return parts.emission
        constrained = Prior(None, None, prior, self._constraints())
        return parts.maximised(counts, constrained).emission

    def _composed_prior(self) -> Tensor | float:
        """Pseudocounts of an emission parameterised by embeddings."""
        return 0.0

    def _emission_attributes(self) -> list[str]:
        return [name for name in super()._emission_attributes() if name not in CHAIN.values()]

    def _roles(self, letters: Iterable[str]) -> list[str]:
        """The embeddings named by letters, without the trailing underscore."""
        return [name[:-1] for letter, name in self._vectors().items() if letter in letters]

    def _vectors(self) -> dict[str, str]:
        return {letter: name for letter, name in self.letters.items() if letter in "uzsvw"}

    def _module(self, vectors: Sequence[Mapping[str, Tensor]]) -> EmbeddingParams:
        """Stack the embeddings of several restarts."""
        stacked = {role: torch.stack([one[role] for one in vectors]) for role in self._roles(self.letters)}
        return EmbeddingParams(stacked, self.kernel, getattr(self, "emission_kernel", None))

    def compose(self) -> Self:
        """Recompute the probabilities from the embeddings. Call this after setting embeddings by hand."""
        self._check_settings()
        self._check_vectors()
        module = self._module([self._own_vectors()])
        self.startprob_, self.transmat_ = (log[0].exp().detach().cpu().numpy() for log in module.log_chain())
        if module.v is not None:
            self.emissionprob_ = module.log_emission()[0].exp().detach().cpu().numpy()
        return self

    def _own_vectors(self) -> dict[str, Tensor]:
        return {name[:-1]: self._tensor(getattr(self, name)) for name in self._vectors().values()}

    def _parts(self) -> DenseParts:
        parts = super()._parts()
        return DenseParts(self._own_vectors(), parts.start, parts.transition, parts.emission)

    def _adopt(self, parts: Parts) -> None:
        super()._adopt(parts)
        for role, vector in cast(DenseParts, parts).vectors.items():
            setattr(self, f"{role}_", vector.cpu().numpy())

    def _reorder(self, order: Array) -> Self:
        super()._reorder(order)
        for name in ("u_", "z_", "w_"):
            if name in self.letters.values():
                setattr(self, name, getattr(self, name)[order])
        return self

    @torch.no_grad()
    def _unpack(self, module: EmbeddingParams, emissions: Sequence[Emission]) -> list[Parts]:
        """The embeddings and probabilities of each restart."""
        vectors = {role: getattr(module, role).detach() for role in self._roles(self.letters)}
        starts, matrices = (log.exp() for log in module.log_chain())
        return [
            DenseParts({role: vector[i] for role, vector in vectors.items()}, starts[i], Dense(matrices[i]), emission)
            for i, emission in enumerate(emissions)
        ]

    def _draw(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise the embeddings from a standard normal."""
        random = check_random_state(seed)
        for letter, name in self._vectors().items():
            if letter in letters:
                setattr(self, name, random.standard_normal(self._shape(letter)))
        self._draw_emission(letters, observed, seed)
        self.compose()

    def _shape(self, letter: str) -> tuple[int, ...]:
        return (self.n_dims,) if letter == "s" else (self.n_components, self.n_dims)

    def _check_vectors(self) -> None:
        for letter, name in self._vectors().items():
            value = np.asarray(getattr(self, name), np.float64)
            if value.shape != self._shape(letter):
                raise InputError(f"{name} must have the shape {self._shape(letter)}, not {value.shape}.")

    def _check(self) -> None:
        if not hasattr(self, "startprob_"):
            self.compose()
        super()._check()

    def _check_settings(self) -> None:
        super()._check_settings()
        one_of(tuple(KERNELS), self.kernel, "kernel")
        one_of(tuple(OPTIMIZERS), self.optimizer, "optimizer")
        if self.n_dims < 1:
            raise InputError(f"n_dims is {self.n_dims}: it must be at least 1.")
