"""Low-rank transitions p(z' | z) ∝ phi(u_z) . phi(v_z') + B[z, z'], where B >= 0 is zero outside a band, parameterised
by nets over embeddings (`LowRankParams`) or by tables (`LowRankTable`), which EM can train."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.base import Support
from trellis.families.hmm.parameters.dropout import Draw
from trellis.families.hmm.parameters.features import FEATURE_MAPS
from trellis.families.hmm.parameters.neural import SETTINGS, NeuralParams
from trellis.families.hmm.parameters.table import Tables, set_log
from trellis.kernels.lse import Known
from trellis.kernels.rows import take
from trellis.transitions import Banded, Entry, LowRank, Sum, Transition
from trellis.transitions.banded import band_probs, enter_band
from trellis.transitions.lowrank import LowRankEntry, normalise_features
from trellis.transitions.sum import SumEntry


class LowRankParams(NeuralParams):
    """`NeuralParams` with u_z = f_move(e_z) and v_z = e'_z, both divided by the square root of the temperature.

    Let N_z be the sum of phi(u_z) . phi(v_z') over all z'. A band weight is exp(c b) N_z / K with learned b: it is
    relative to the mean N_z / K, because phi has no fixed scale, and weight decay shrinks it towards this mean. With c
    = d / 4, b learns as fast as products of vectors."""

    kind = "lowrank"
    drops = ("state",)
    keys = (*SETTINGS, "features", "band", "feature_map", "temperature")
    band: Tensor | None

    def __init__(self, words: Sequence[str], config: HMMConfig, support: Support = None, seed: int = 0) -> None:
        super().__init__(words, config, support, seed)
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

    def transition_between(self, before: Tensor, after: Tensor, draw: Draw) -> Transition:
        into, out, log_norm = normalise_features(*self.log_features(before, after, draw.features))
        low_rank = LowRank(into, out, self.dtype)
        if self.band is None:
            return low_rank
        probs, log_sums = band_probs(self.band * self.pace, draw.ids)
        return Sum.normalised((low_rank, log_norm), (Banded(probs), log_sums + log_norm - math.log(len(out))))

    def entry_from(self, ids: Tensor, before: Tensor, after: Tensor, draw: Draw, known: Known | None) -> Entry:
        into, out, log_norm = normalise_features(*self.log_features(before, after, draw.features))
        low_rank = LowRankEntry(into, out, self.dtype)
        if self.band is None:
            return low_rank
        band, log_sums = enter_band(self.band * self.pace, ids, draw.ids)
        return SumEntry.normalised((low_rank, log_norm), (band, log_sums + log_norm - math.log(len(out))))


class LowRankTable(Tables):
    """Logits of p(f | z) [K, F] and of the band [K, w], concatenated, and of p(z' | f) [K, F]."""

    kind = "lowrank-table"
    drops = ("state",)
    sizes = ("features", "band")
    row_logits: nn.Parameter
    column_logits: nn.Parameter

    def __init__(
        self, num_states: int, num_words: int, support: Support = None, init_std: float = 1.0, seed: int = 0,
        features: int = 256, band: int = 0,
    ) -> None:  # fmt: skip
        self.num_features, self.width = features, band
        super().__init__(num_states, num_words, support, init_std, seed)

    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        rows = (self.num_states, self.num_features + self.width)  # features, then band
        return {"row_logits": rows, "column_logits": (self.num_states, self.num_features)}

    def factors(self, rows: Tensor | None, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
        """p(f | z) of the states `rows` (all if None), p(z' | f) of the states that the draw keeps, and the logarithms
        of the row sums."""
        left = self.row_logits[:, : self.num_features]
        left = left if rows is None else take(left, rows)
        right = self.column_logits if draw.ids is None else self.column_logits[draw.ids]
        if draw.features is not None:
            left, right = left[:, draw.features], right[:, draw.features]
        return normalise_features(left, right)

    def transition(self, draw: Draw) -> Transition:
        into, out, log_norm = self.factors(draw.ids, draw)
        if not self.width:
            return LowRank(into, out)
        probs, log_sums = band_probs(self.row_logits[:, self.num_features :], draw.ids)
        return Sum.normalised((LowRank(into, out), log_norm), (Banded(probs), log_sums))

    def entry(self, ids: Tensor, draw: Draw) -> Entry:
        into, out, log_norm = self.factors(ids, draw)
        if not self.width:
            return LowRankEntry(into, out)
        band, log_sums = enter_band(self.row_logits[:, self.num_features :], ids, draw.ids)
        return SumEntry.normalised((LowRankEntry(into, out), log_norm), (band, log_sums))

    def write_transition(self, transition: LowRank | Sum) -> None:
        """Set the logits to those of this transition; z -> f and the band share one distribution per row."""
        if isinstance(transition, Sum):
            (low_rank, share), (band, rest) = transition.shares()
            rows = torch.cat([low_rank.into * share[:, None], band.probs * rest[:, None]], -1)
        else:
            low_rank, rows = transition, transition.into
        set_log(self.row_logits, rows)
        set_log(self.column_logits, low_rank.out)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"features": self.num_features, "band": self.width}
