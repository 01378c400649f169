"""The estimator for it, with the scikit-learn interface."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from sklearn.utils import check_random_state
from von_mises import VonMises

from trellis.estimators.base import BaseHMM
from trellis.estimators.inputs import Observations, read_numbers


@dataclass(repr=False, eq=False)
class VonMisesHMM(BaseHMM):
    """An HMM over angles. Fitted attributes: `startprob_`, `transmat_`, `means_` [K] and `kappas_` [K]."""

    _: KW_ONLY
    params: str = "stmk"
    init_params: str = "stmk"

    letters = BaseHMM.letters | {"m": "means_", "k": "kappas_"}

    def _emission(self) -> VonMises:
        return VonMises(self._tensor(self.means_), self._tensor(self.kappas_))

    def _adopt_emission(self, emission: VonMises) -> None:
        self.means_, self.kappas_ = emission.means.cpu().numpy(), emission.kappas.cpu().numpy()

    def _emission_prior(self) -> float | None:
        return 0.0 if "m" in self.params else None

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        random = check_random_state(seed)
        if "m" in letters:
            self.means_ = random.choice(observed.seen[:, 0], self.n_components)
        if "k" in letters:
            self.kappas_ = random.uniform(1.0, 3.0, self.n_components)

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        return read_numbers(X, lengths, self.missing_values)

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"m": self.n_components, "k": self.n_components}
