"""The plots of the studies, from study.json and trained.json."""

from __future__ import annotations

import json
from typing import Any

from experiments.kernel_hmm.feature_study import ESTIMATORS, FOLDER
from experiments.kernel_hmm.spectral_hmm import METHODS
from experiments.plots import Line, Look, line

FEATURES, WAYS = "features of the kernel", ("measured", "predicted")
LAST = "transition"  # dashed

Picture = tuple[Look, list[Line]]


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def squared_errors() -> Picture:
    found = read("study.json")["squared_errors"]["16 dimensions, norm 1"]
    look = Look("Relative squared error of the kernel, 16 dimensions, norm 1", FEATURES, "relative squared error", True)
    lines = [
        line(f"{kind}, {way}", {int(m): one[kind][way] for m, one in found.items()}, kind, way == WAYS[1])
        for kind in ESTIMATORS
        for way in WAYS
        if way in next(iter(found.values()))[kind]
    ]
    return look, lines


def divergence() -> Picture:
    found = read("study.json")["divergence"]
    look = Look("KL from a softmax matrix of 128 states, 16 dimensions", FEATURES, "KL divergence per row (nats)", True)
    lines = [
        line(f"norm {norm}, {kind}", {int(m): one[kind] for m, one in rows.items()}, f"{norm}", kind == "random")
        for norm in (1, 2, 3)
        for rows in [found[f"128 states, norm {norm}, 16 dimensions"]]
        for kind in ("learned", "random")
    ]
    return look, lines


def spectral() -> Picture:
    found = read("study.json")["spectral"]["errors"]
    title = "Error of estimates by the length of the text: 5 states, 20 symbols"
    look = Look(title, "length of the text (tokens)", "L1 error per state (median)", True)
    lines = [
        line(f"{how}, {what}", {int(n): one[f"{how}_{what}"] for n, one in found.items()}, how, what == LAST)
        for how in METHODS
        for what in ("emission", LAST)
    ]
    return look, lines


def trained() -> Picture:
    found = read("trained.json")
    title = "Perplexity of a trained softmax HMM of 256 states, its transitions replaced by features"
    lines = [line(name, by_features(found[name])) for name in ("random", "orthogonal", "learned")]
    (base,) = found["softmax"]["perplexity"].values()
    lines.append(line("softmax", dict.fromkeys((point.x for point in lines[0].points), base), hollow=True))
    return Look(title, FEATURES, "validation perplexity", True), lines


def by_features(found: dict[str, Any]) -> dict[int, float]:
    return {int(m): value for m, value in found["perplexity"].items()}


PICTURES = {"squared-errors": squared_errors, "divergence": divergence, "spectral": spectral, "trained": trained}
