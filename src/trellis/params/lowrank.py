"""Transitions through features, p(z' | z) ∝ phi(u_z) . phi(v_z') + B[z, z'], with B >= 0 inside a band: by nets over
embeddings (`LowRankParams`), or as tables of numbers (`LowRankTable`), which EM can re-estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import ModelConfig, suggestion
from trellis.errors import TrellisError
from trellis.kernels.rows import take
from trellis.params.base import NOTHING, Support, restored_support
from trellis.params.dropout import Dropped
from trellis.params.features import FEATURE_MAPS
from trellis.params.neural import SETTINGS, NeuralParams
from trellis.params.table import TableParams, replace
from trellis.transitions import Sum, Transition
from trellis.transitions.banded import of_band
from trellis.transitions.lowrank import of_features


def operator(
    log_left: Tensor,
    log_right: Tensor,
    log_band: Tensor | None,
    rows: Tensor | None,
    kept: Tensor | None,
    dtype: torch.dtype | None = None,
    relative: bool = False,
) -> Transition:
    """Out of log phi(u) [R, F] of the states `rows`, log phi(v) [K', F] of those kept, and log B [K, w] of all; a
    `relative` B is in units of the mean weight N_z / K' that phi gives the states after z."""
    low_rank, log_norm = of_features(log_left, log_right, dtype)
    if log_band is None:
        return low_rank
    band, log_sums = of_band(log_band, kept, None if rows is kept else rows)
    if relative:
        log_sums = log_sums + log_norm - math.log(low_rank.num_states)
    return Sum.normalised((low_rank, log_norm), (band, log_sums))


class LowRankParams(NeuralParams):
    """u_z = f_move(e_z) and v_z = e'_z, both over the square root of the temperature; else `NeuralParams`.

    A weight in the band is exp(c b) N_z / K, of learned numbers b: phi has no scale of its own, decay of b leads to the
    mean, and with c = d / 4 they learn at the pace of products of vectors."""

    kind = "lowrank"
    keys = (*SETTINGS, "features", "band", "feature_map", "temperature")
    band: Tensor | None

    def __init__(self, words: Sequence[str], config: ModelConfig, support: Support = None, seed: int = 0) -> None:
        super().__init__(words, config, support, seed)
        check(config)
        self.scale, self.pace = config.temperature**-0.5, config.dim / 4
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.features = FEATURE_MAPS[config.feature_map](config.dim, config.features)
        self.num_features = self.features.num_features
        self.register_parameter("band", None)
        if config.band:
            self.band = nn.Parameter(torch.zeros(self.num_states, config.band))

    def log_features(self, before: Tensor, after: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log phi(u) and log phi(v) of states embedded as `before` and `after`."""
        u, v = self.nets["move"](before.to(self.dtype)), after.to(self.dtype)
        return self.features(u * self.scale, kept), self.features(v * self.scale, kept)

    def operator(self, before: Tensor, after: Tensor, rows: Tensor | None, dropped: Dropped) -> Transition:
        left, right = self.log_features(before, after, dropped.features)
        band = None if self.band is None else self.band * self.pace
        return operator(left, right, band, rows, dropped.ids, self.dtype, relative=True)


class LowRankTable(TableParams):
    """Logits of p(f | z) [K, F], of p(z' | f) [K, F] and of the band [K, w], besides those of `TableParams`."""

    kind = "lowrank-table"

    def __init__(
        self, num_states: int, num_words: int, support: Support = None, spread: float = 1.0, seed: int = 0,
        features: int = 256, band: int = 0,
    ) -> None:  # fmt: skip
        self.num_features, self.width = features, band
        super().__init__(num_states, num_words, support, spread, seed)

    def make_transition(self, logits: Callable[..., nn.Parameter]) -> None:
        self.row_logits = logits(self.num_states, self.num_features + self.width)  # features, then band
        self.column_logits = logits(self.num_states, self.num_features)

    @classmethod
    def new(cls, words: Sequence[str], config: ModelConfig, support: Support, seed: int) -> LowRankTable:
        check(config)
        return cls(config.states, len(words), support, seed=seed, features=config.features, band=config.band)

    def transition(self, dropped: Dropped = NOTHING) -> Transition:
        return self.between(dropped.ids, dropped)

    def entry(self, ids: Tensor, dropped: Dropped) -> Transition:
        return self.between(ids, dropped)

    def between(self, rows: Tensor | None, dropped: Dropped) -> Transition:
        """From the states `rows` (None: all) into those that the draw keeps."""
        left, band = self.row_logits.split([self.num_features, self.width], -1)
        left = left if rows is None else take(left, rows)
        right = self.column_logits if dropped.ids is None else self.column_logits[dropped.ids]
        if dropped.features is not None:
            left, right = left[:, dropped.features], right[:, dropped.features]
        return operator(left, right, band if self.width else None, rows, dropped.ids)

    def maximise_transition(self, moves: Tensor, pseudocount: float) -> None:
        """The expected steps z -> f and within the band are one row of counts, those f -> z' a column."""
        size = self.num_states * self.num_features
        into, out, band = (moves.flatten() + pseudocount).split([size, size, self.num_states * self.width])
        row = torch.cat([part.view(self.num_states, -1) for part in (into, band) if len(part)], -1)
        column = out.view(self.num_states, -1)
        replace(self.row_logits, row, row.sum(-1, keepdim=True))
        replace(self.column_logits, column, column.sum(0, keepdim=True))

    @torch.no_grad()
    def set_probabilities(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        raise TrellisError('A matrix of transitions cannot be set through features: use model.params = "scalar".')

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"features": self.num_features, "band": self.width}

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> LowRankTable:
        sizes = {name: int(settings[name]) for name in ("features", "band")}
        params = cls(int(settings["states"]), len(words), restored_support(tensors), **sizes)
        params.to(tensors["start_logits"].dtype).load_state_dict(tensors)
        return params


def check(config: ModelConfig) -> None:
    """One sentence about choices that do not go together."""
    if config.feature_map not in FEATURE_MAPS:
        known = suggestion(config.feature_map, FEATURE_MAPS)
        raise TrellisError(f"model.feature_map is {config.feature_map!r}, which is not known{known}")
    if config.features < 1 or config.band < 0 or not 0 < config.temperature < math.inf:
        raise TrellisError("model.features must be at least 1, band at least 0, and temperature a number above 0.")
    if config.kernel != "softmax":
        raise TrellisError('model.kernel is for model.params = "neural"; low-rank ones have a model.feature_map.')
    if config.dropout == "unstructured":
        raise TrellisError(
            'model.dropout = "unstructured" leaves out single transitions, which low-rank ones do not have: use '
            '"state", or model.feature_dropout.'
        )
