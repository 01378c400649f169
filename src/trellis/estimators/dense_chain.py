"""The chain of a DenseHMM: start and transitions composed of vectors, whatever its states emit."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import check_random_state

from trellis.errors import InputError
from trellis.estimators.base import BaseHMM
from trellis.estimators.em import Parameters
from trellis.estimators.fitted import one_of
from trellis.estimators.inputs import Array, Observations
from trellis.learning import dense
from trellis.learning.descent import OPTIMIZERS
from trellis.params.embedding import EmbeddingParams
from trellis.params.kernels import KERNELS
from trellis.types import Counts

CHAIN = {"u": "u_", "z": "z_", "s": "z_start_"}


@dataclass(repr=False, eq=False)
class DenseChain(BaseHMM):
    """Start and transitions composed of vectors: A[i, j] ~ k(z_i, u_j), pi[i] ~ k(z_start, u_i).

    Fitted vectors: `u_`, `z_` [K, l] and `z_start_` [l]; `startprob_` and `transmat_` are made of them."""

    n_dims: int = 2  # l, the length of u and z
    _: KW_ONLY
    kernel: str = "softmax"  # softmax | normAbsLin | sigmoid | relu | rbf
    optimizer: str = "adam"  # adam | sgd | lbfgs
    learning_rate: float = 0.01
    mstep_epochs: int = 25  # gradient steps of each M-step

    composed: ClassVar[tuple[str, ...]] = ("startprob_", "transmat_")

    @property
    def state_embeddings_(self) -> Array:
        """All vectors of each state side by side."""
        return np.concatenate([self.u_, self.z_], 1)

    def free_parameters(self) -> dict[str, int]:
        """Of what is trained; what is left out of `params` is frozen."""
        return {
            letter: int(np.size(getattr(self, name))) for letter, name in self.letters.items() if letter in self.params
        }

    def maximise(self, params: list[Parameters], counts: list[Counts]) -> list[Parameters]:
        """The M-step of all restarts in one descent."""
        module = self._module(params)
        together = dense.stack_counts([self._with_prior(found) for found in counts])
        dense.maximise(
            module, together, self.mstep_epochs, self.optimizer, self.learning_rate, self._roles(self.params)
        )
        return [
            old | new | self.maximise_emission(old, found.emission)
            for old, new, found in zip(params, self._unpack(module), counts, strict=True)
        ]

    def _with_prior(self, counts: Counts) -> Counts:
        """Counts with those of the Dirichlet priors."""
        return counts._replace(
            start=(counts.start + self._tensor(self.startprob_prior) - 1).clamp(min=0),
            transition=(counts.transition + self._tensor(self.transmat_prior) - 1).clamp(min=0),
        )

    def _roles(self, letters: str) -> list[str]:
        """The vectors that letters name, without their final underscore."""
        return [name[:-1] for letter, name in self._vectors().items() if letter in letters]

    def _vectors(self) -> dict[str, str]:
        return {letter: name for letter, name in self.letters.items() if letter in "uzsvw"}

    def _module(self, params: list[Parameters]) -> EmbeddingParams:
        """The vectors of several restarts side by side."""
        stacked = {name[:-1]: torch.stack([one[name] for one in params]) for name in self._vectors().values()}
        return EmbeddingParams(stacked, self.kernel, getattr(self, "emission_kernel", None))

    def compose(self) -> Self:
        """Set the probabilities that the vectors compose, after the vectors were set by hand."""
        self._check_settings()
        self._check_vectors()
        vectors = {name: self._tensor(getattr(self, name)) for name in self._vectors().values()}
        (made,) = self._unpack(self._module([vectors]))
        for name in self.composed:
            setattr(self, name, made[name].cpu().numpy())
        return self

    @torch.no_grad()
    def _unpack(self, module: EmbeddingParams) -> list[Parameters]:
        """Vectors and what they compose, of each restart apart."""
        values = {name: getattr(module, name[:-1]).detach() for name in self._vectors().values()}
        values |= {"startprob_": module.log_start().exp(), "transmat_": module.log_transition().exp()}
        if module.v is not None:
            values["emissionprob_"] = module.log_emission().exp()
        return [dict(zip(values, one, strict=True)) for one in zip(*values.values(), strict=True)]

    def _draw(self, letters: str, observed: Observations, seed: Any) -> None:
        """Standard normal vectors."""
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
            raise InputError(f"n_dims is {self.n_dims}: vectors need at least one number.")
