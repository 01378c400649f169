"""Constraints on the states of an HMM: transitions that stay zero, tied and frozen parameters, sticky priors."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from trellis.devices import choose_device
from trellis.errors import InputError
from trellis.estimators.fitted import FittedHMM
from trellis.estimators.inputs import Array
from trellis.learning.constraints import Constraints, TiedRows, TiedStates
from trellis.parts import Parts
from trellis.types import Counts

SETTINGS = (
    *("transmat_mask", "startprob_mask", "tied_transitions"),
    *("tied_emissions", "frozen_transitions", "frozen_emissions"),
)
SMALLEST = 1e-12  # initial weight of an allowed transition
TOLERANCE = 1e-8  # how much tied values may differ


def left_right(n_components: int, max_jump: int = 1) -> Array:
    """A `transmat_mask` for a left-right model, which allows transitions from state i to i, i + 1, ..., i + max_jump.

    Parameters
    ----------
    n_components
        The number of states.
    max_jump
        The largest step to the right.

    Examples
    --------
    >>> trellis.left_right(3).astype(int)
    array([[1, 1, 0],
           [0, 1, 1],
           [0, 0, 1]])
    """
    if max_jump < 1:
        raise InputError(f"max_jump is {max_jump}: it must be at least 1.")
    steps = np.arange(n_components) - np.arange(n_components)[:, None]
    return (steps >= 0) & (steps <= max_jump)


def ergodic(n_components: int, self_loops: bool = True) -> Array:
    """A `transmat_mask` that allows all transitions; with `self_loops=False`, all but those from a state to itself.

    Parameters
    ----------
    n_components
        The number of states.
    self_loops
        Whether a state may follow itself.

    Examples
    --------
    >>> trellis.ergodic(2, self_loops=False).astype(int)
    array([[0, 1],
           [1, 0]])
    """
    return np.ones((n_components, n_components), bool) if self_loops else ~np.eye(n_components, dtype=bool)


def first_state(n_components: int) -> Array:
    """A `startprob_mask` for a model that always starts in its first state.

    Parameters
    ----------
    n_components
        The number of states.

    Examples
    --------
    >>> trellis.first_state(3)
    array([ True, False, False])
    """
    return np.arange(n_components) == 0


class Topology(NamedTuple):
    """The constraints on the parameters of K states, checked and converted to arrays."""

    start: Array  # [K] bool: allowed first states
    mask: Array  # [K, K] bool: allowed transitions
    labels: Array  # [K, K] int, less than K * K: transitions with the same label are tied
    frozen: Array  # [K, K] bool: transitions that are not trained
    first: Array  # [K] int: the first state with the same emission
    frozen_emissions: Array  # [K] bool

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The labels of the trained transitions of each row, sorted."""
        trained = self.mask & ~self.frozen
        return [tuple(sorted(labels[where].tolist())) for labels, where in zip(self.labels, trained, strict=True)]

    def tied_rows(self) -> TiedRows:
        repeats = np.ones(self.labels.shape)
        for row, (labels, trained) in enumerate(zip(self.labels, self.rows, strict=True)):
            repeats[row] = [max(1, trained.count(label)) for label in labels.tolist()]
        return TiedRows(*map(torch.from_numpy, (self.labels, repeats, self.frozen)))


@dataclass(repr=False, eq=False)
class ConstrainedHMM(FittedHMM):
    """An estimator with constraints on its parameters. Each constraint may be a function of `n_components`."""

    _: KW_ONLY
    transmat_mask: Any = None
    startprob_mask: Any = None
    tied_transitions: Any = None
    tied_emissions: Any = None
    frozen_transitions: Any = None
    frozen_emissions: Any = None
    sticky: float = 0.0

    unsupported: ClassVar[tuple[str, ...]] = ()  # the settings of this class that do not apply to a subclass

    def free_parameters(self) -> dict[str, int]:
        topology = self._topology()
        if topology is None:
            return super().free_parameters()
        moves = sum(len(set(labels)) - 1 for labels in set(topology.rows) if labels)
        return super().free_parameters() | {"s": int(topology.start.sum()) - 1, "t": moves}

    def _distributions(self) -> int:
        """The number of trained emissions. Tied emissions count once."""
        topology = self._topology()
        if topology is None:
            return self.n_components
        return len(np.unique(topology.first[~topology.frozen_emissions]))

    def _topology(self) -> Topology | None:
        """The constraints, checked; None if there are none."""
        if all(getattr(self, name) is None for name in SETTINGS):
            return None
        size = self.n_components
        mask = self._mask("transmat_mask", (size, size))
        labels = self._transition_labels(mask)
        tied = self._labels("tied_emissions", np.arange(size), ((size,),))
        first = np.array([np.argmax(tied == label) for label in tied])
        frozen = self._chosen("frozen_transitions", True)
        found = Topology(
            self._mask("startprob_mask", (size,)),
            *(mask, labels, frozen if frozen.ndim == 2 else np.broadcast_to(frozen[:, None], mask.shape).copy()),
            *(first, self._chosen("frozen_emissions", False)),
        )
        check_frozen(found.labels[mask], found.frozen[mask], "transitions")
        check_frozen(found.first, found.frozen_emissions, "emissions")
        return found

    def _setting(self, name: str) -> Any:
        value = getattr(self, name)
        return value(self.n_components) if callable(value) else value

    def _mask(self, name: str, shape: tuple[int, ...]) -> Array:
        value = self._setting(name)
        if value is None:
            return np.ones(shape, bool)
        given = np.asarray(value)
        if given.shape != shape or not np.isin(given, (0, 1)).all():
            raise InputError(f"{name} must be an array of {shape} truth values.")
        allowed = given.astype(bool)
        if not allowed.any(-1).all():
            where = f" from state {int(np.argmin(allowed.any(-1)))}" if len(shape) == 2 else ""
            raise InputError(f"{name} excludes every {'transition' if where else 'start'}{where}; allow at least one.")
        return allowed

    def _labels(self, name: str, default: Array, shapes: Sequence[tuple[int, ...]]) -> Array:
        """The labels in the setting `name`, as integers from 0."""
        value = self._setting(name)
        if value is None:
            return default
        given = np.asarray(value)
        if given.shape not in shapes:
            raise InputError(f"{name} must be labels of shape {' or '.join(map(str, shapes))}, not {given.shape}.")
        return np.unique(given, return_inverse=True)[1].reshape(given.shape)

    def _transition_labels(self, mask: Array) -> Array:
        """A label for each transition [K, K]. Rows that share a label must have the same labels, each equally often."""
        size = self.n_components
        single = np.arange(size * size).reshape(size, size)
        labels = self._labels("tied_transitions", single, ((size,), (size, size)))
        if labels.ndim == 1:
            labels = labels[:, None] * size + np.arange(size)
        labels = np.where(mask, labels, single + size * size)
        labels = np.unique(labels, return_inverse=True)[1].reshape(size, size)
        seen: dict[int, tuple[int, tuple[int, ...]]] = {}
        for row in range(size):
            mine = tuple(sorted(labels[row, mask[row]].tolist()))
            for other, theirs in (seen.setdefault(label, (row, mine)) for label in mine):
                if theirs != mine:
                    raise InputError(
                        f"tied_transitions ties only some transitions of states {other} and {row}; the allowed "
                        "transitions of two states must have the same labels, each equally often, or none in common."
                    )
        return labels

    def _chosen(self, name: str, matrix: bool) -> Array:
        """A mask [K] from a list of states or from truth values; with `matrix`, a mask [K, K] is also accepted."""
        size, value = self.n_components, self._setting(name)
        if value is None:
            return np.zeros(size, bool)
        given = np.asarray(value)
        if matrix and given.shape == (size, size) and np.isin(given, (0, 1)).all():
            return given.astype(bool)
        if given.dtype == bool and given.shape == (size,):
            return given
        if given.ndim != 1 or given.dtype.kind not in "iu" or ((given < 0) | (given >= size)).any():
            raise InputError(f"{name} must list states from 0 to {size - 1}{', or be [K, K]' if matrix else ''}.")
        return np.isin(np.arange(size), given)

    def _constraints(self) -> Constraints | None:
        """The constraints of the M-step, on the device used for inference."""
        topology = self._topology()
        if topology is None:
            return None
        device, rows, states = choose_device(self.device), None, None
        if self.tied_transitions is not None or self.frozen_transitions is not None:
            rows = TiedRows(*(part.to(device) for part in topology.tied_rows()))
        if self.tied_emissions is not None or self.frozen_emissions is not None:
            parts = map(torch.from_numpy, (topology.first, topology.frozen_emissions))
            states = TiedStates(*(part.to(device) for part in parts))
        return Constraints(rows, states)

    def _stickiness(self) -> Any:
        """The pseudocounts that `sticky` adds to the transition counts: [K, K], or 0."""
        return self.sticky * self._tensor(np.eye(self.n_components)) if self.sticky else 0.0

    def _penalised(self, models: Sequence[Parts], counts: Sequence[Counts]) -> list[Counts]:
        """The counts, where the objective log-likelihood + sticky * sum_z log A(z, z) replaces the log-likelihood."""
        if not self.sticky:
            return list(counts)
        stays = [parts.transition.dense().diagonal() for parts in models]
        logs = [self.sticky * stay[stay > 0].log().sum() for stay in stays]
        pairs = zip(counts, logs, strict=True)
        return [one._replace(log_likelihood=one.log_likelihood + log) for one, log in pairs]

    def _emission_attributes(self) -> list[str]:
        """The attributes of the emission that have an entry for each state."""
        return [name for name in self.letters.values() if name not in ("startprob_", "transmat_")]

    def _frozen_values(self) -> dict[str, Array]:
        """Copies of the attributes with frozen parameters, made before initial parameters are sampled."""
        names = ["transmat_"] if self.frozen_transitions is not None else []
        names += self._emission_attributes() if self.frozen_emissions is not None else []
        for name in names:
            if not hasattr(self, name):
                setting = "frozen_transitions" if name == "transmat_" else "frozen_emissions"
                raise InputError(f"{name.strip('_')}_ is not set; {setting} keeps its values, so set it before fit.")
        return {name: np.array(getattr(self, name), np.float64) for name in names}

    def _constrain(self, letters: str, frozen: dict[str, Array]) -> None:
        """Apply the constraints to the initial parameters that were sampled."""
        topology = self._topology()
        if topology is None:
            return
        drawn = {self.letters[letter] for letter in letters}
        if "startprob_" in drawn:
            weights = np.maximum(self.startprob_, SMALLEST) * topology.start
            self.startprob_ = weights / weights.sum()
        if "transmat_" in drawn:
            kept = np.where(topology.frozen, frozen.get("transmat_", 0.0), topology.mask)
            weights = torch.from_numpy(np.maximum(self.transmat_, SMALLEST))
            self.transmat_ = topology.tied_rows().maximised(weights, 0.0, torch.from_numpy(kept)).numpy()
        for name in drawn.intersection(self._emission_attributes()):
            value = np.array(getattr(self, name))[topology.first]
            if topology.frozen_emissions.any():
                value[topology.frozen_emissions] = frozen[name][topology.frozen_emissions]
            setattr(self, name, value)

    def _check_settings(self) -> None:
        super()._check_settings()
        for name in self.unsupported:
            if getattr(self, name) is not None:
                how = "its probabilities are computed from vectors, which `params` can freeze"
                raise InputError(f"{name} does not apply to {type(self).__name__}: {how}.")
        if not self.sticky >= 0:
            raise InputError(f"sticky is {self.sticky}: it must not be negative.")
        self._topology()

    def _check(self) -> None:
        super()._check()
        topology = self._topology()
        if topology is None:
            return
        check_zeros(self.startprob_, topology.start, "startprob")
        check_zeros(self.transmat_, topology.mask, "transmat")
        if self.tied_transitions is not None:
            check_tied(self.transmat_[topology.mask], topology.labels[topology.mask], "transmat_", "tied_transitions")
        for name in self._emission_attributes() if self.tied_emissions is not None else ():
            check_tied(np.asarray(getattr(self, name)), topology.first, name, "tied_emissions")


def check_zeros(values: Array, allowed: Array, name: str) -> None:
    """Raise if a parameter is positive where its mask has a zero."""
    wrong = np.argwhere((values > 0) & ~allowed)
    if len(wrong):
        place = tuple(map(int, wrong[0]))
        where = f"state {place[0]}" if len(place) == 1 else f"the transition from state {place[0]} to {place[1]}"
        raise InputError(f"{name}_ is {values[place]:.4g} for {where}, which {name}_mask excludes; set it to 0.")


def check_tied(values: Array, labels: Array, name: str, setting: str) -> None:
    """Raise if values with the same label differ."""
    first = np.unique(labels, return_index=True, return_inverse=True)
    if not np.allclose(values, values[first[1]][first[2]], rtol=TOLERANCE, atol=TOLERANCE):
        raise InputError(f"{name.strip('_')}_ has different values where {setting} ties them; make them equal.")


def check_frozen(labels: Array, frozen: Array, what: str) -> None:
    """Raise if some, but not all, of the parameters with the same label are frozen."""
    if np.intersect1d(labels[frozen], labels[~frozen]).size:
        raise InputError(f"frozen_{what} freezes only some of the {what} that tied_{what} ties; freeze all or none.")
