"""The explorer's views of a factorial HMM: the states of each layer, and their posteriors in a sentence."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.explore.language import LanguageViews
from trellis.explore.views import Answer
from trellis.families.factorial.model import FHMM
from trellis.inference.stationary import with_restarts
from trellis.models.base import Path
from trellis.transitions import Dense

WORDS, LABEL, FOLLOWERS = 20, 3, 5
MOST_STATES, WORTH = 24, 0.05  # states in a trellis; minimum peak posterior


class FHMMViews(LanguageViews):
    """Views of a factorial HMM."""

    views: ClassVar[tuple[str, ...]] = ("sentence", "layers", "questions")
    model: FHMM

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """For each layer, how much a state raises the log-weight of a word above the mean of its layer: [V, K_m]."""
        with torch.no_grad():
            layers = self.model.emission().layers()
            return tuple(layer - layer.mean(1, keepdim=True) for layer in layers)

    @torch.no_grad()
    def layers(self, layer: int) -> Answer:
        """The states of a layer: words that each makes more probable, occupancy, and successors."""
        sizes = self.model.sizes
        if layer >= len(sizes):
            raise TrellisError(f"There is no layer {layer}; the layers are 0 to {len(sizes) - 1}.")
        starts, transitions = self.model.chains()
        start, matrix = starts[layer], transitions[layer]
        shares = with_restarts(start, Dense(matrix), torch.zeros_like(start)).tolist()
        items = [
            {"id": z, "label": self.label(layer, z), "occupancy": shares[z], "words": self.words(layer, z),
             "outgoing": ranked(matrix[z])}
            for z in range(sizes[layer])
        ]  # fmt: skip
        return {"layers": len(sizes), "layer": layer, "items": items}

    def words(self, layer: int, state: int) -> list[Answer]:
        best = self.weights[layer][:, state].topk(min(WORDS, len(self.model.vocab)))
        pairs = zip(self.model.vocab.decode(best.indices.tolist()), best.values.tolist(), strict=True)
        return [{"word": word, "weight": weight} for word, weight in pairs]

    def label(self, layer: int, state: int) -> str:
        return ", ".join(one["word"] for one in self.words(layer, state)[:LABEL])

    def smooth(self, text: str) -> Answer:
        """The posteriors of the states of all layers, and the most probable path of each layer."""
        ids, words, known = self.words_of(text)
        if GAP in words:
            raise TrellisError("Gaps are for HMMs; a factorial HMM reads whole sentences.")
        posterior = torch.from_numpy(np.asarray(self.model.posterior(ids)))
        paths = cast(Path, self.model.viterbi(ids)).states
        layer_of = [m for m, size in enumerate(self.model.sizes) for _ in range(size)]
        begins = np.cumsum([0, *self.model.sizes])
        peak = posterior.max(0).values
        best = peak.topk(min(MOST_STATES, len(peak))).indices.sort().values
        chosen = best[peak[best] >= WORTH].tolist()
        scored = self.score(text)
        states = [
            {"id": s - int(begins[layer_of[s]]), "label": self.label(layer_of[s], s - int(begins[layer_of[s]])),
             "class": layer_of[s], "layer": layer_of[s]}
            for s in chosen
        ]  # fmt: skip
        place = {s: i for i, s in enumerate(chosen)}
        return {
            "words": words,
            "known": known,
            "states": states,
            "posterior": posterior[:, chosen].tolist(),
            "edges": [[] for _ in words[1:]],
            "path": [None] * len(words),
            "paths": [[place.get(int(begins[m] + z)) for z in paths[:, m]] for m in range(len(self.model.sizes))],
            "surprisal": scored["surprisal"][: len(words)],
            "log_prob": scored["log_prob"],
            "gaps": [],
            "command": self.python(f"posterior({text!r})"),
        }


def ranked(row: Tensor) -> list[Answer]:
    """The most probable next states of a layer, given its transition row [K_m]."""
    top = row.topk(min(FOLLOWERS, len(row)))
    return [{"id": z, "prob": p} for z, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
