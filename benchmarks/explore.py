"""The explorer: seconds until an answer, the first one and later ones, of the map of all states, and of the page."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.explore_page import measure_page
from benchmarks.large_hmm import build
from benchmarks.report import emit
from fuzz.asgi import ask
from trellis.corpus import GAP
from trellis.explore.explorer import Explorer, open_views
from trellis.explore.layout import place_states
from trellis.explore.server import application
from trellis.explore.turns import Turns
from trellis.explore.views import Views, views_of
from trellis.families.hmm.model import HMM
from trellis.families.hmm.views import HMMViews

BENCH = "explore"
STATES, CLASSES = 65_536, 128  # of the untrained model
WORDS, TIMES = 20, 5  # words of the sentence, and measurements of an answer
LIMITS = {False: 0.1, True: 1.0}  # seconds of an answer: small models, and large ones
LARGE = 10_000  # states
MAP_LIMIT = 60.0  # seconds of the map
PATIENCE = 600.0  # seconds that an answer may take


def requests(views: Views) -> dict[str, tuple[str, str, Any]]:
    """The requests that are measured, by name."""
    words = views.frequent_words()
    chosen = (words * WORDS)[:WORDS]
    text = views.model.vocab.join(chosen)
    gap = views.model.vocab.join([*chosen[: WORDS // 2], GAP, *chosen[WORDS // 2 + 1 :]])
    return {
        "smooth, 20 words": ("POST", "/api/smooth", {"text": text}),
        "smooth, one word is a gap": ("POST", "/api/smooth", {"text": gap}),
        "infill, one gap": ("POST", "/api/infill", {"text": gap, "complete": True}),
        "score, 20 words": ("POST", "/api/score", {"text": text}),
        "predict": ("POST", "/api/predict", {"text": text}),
        "one state": ("GET", "/api/states/1", None),
        "a page of states": ("GET", "/api/states", None),
        "states of a word": ("GET", f"/api/states?query={words[0]}", None),
        "the map, ready": ("GET", "/api/map", None),
    }


def measure(name: str, views: Views) -> None:
    """All figures of a model."""
    assert isinstance(views, HMMViews)
    app = application(Explorer([views]), turns=Turns(PATIENCE))
    limit = LIMITS[views.model.num_states >= LARGE]
    asked = requests(views)
    tell(name, "first answer, nothing kept", spent(lambda: ask(app, *asked["smooth, 20 words"])))
    tell(name, "background work", spent(lambda: views.background(lambda work: work())))
    for what, request in asked.items():
        times = sorted(answer(app, views, request) for _ in range(TIMES))
        tell(name, what, times[TIMES // 2], limit)
    text = views.model.vocab.join([*views.frequent_words()[: WORDS - 2], GAP, GAP])
    adjacent = "POST", "/api/smooth", {"text": text}
    tell(name, "smooth, two gaps side by side", answer(app, views, adjacent))
    vectors, groups = views.vectors.cpu().numpy(), views.classes_of_states
    classes = None if groups is None else groups.cpu().numpy()
    tell(name, "computing the map", spent(lambda: place_states(vectors, classes)), MAP_LIMIT)


def tell(name: str, what: str, found: tuple[float, float], limit: float | None = None) -> None:
    """Report seconds, and seconds of CPU time, which other jobs on the machine hardly change."""
    seconds, cpu = found
    ratio = None if limit is None else limit / seconds
    emit(BENCH, name, what, seconds, "-" if limit is None else "limit", limit, ratio, "s", cpu=cpu)


def spent(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds that a function takes, and its CPU seconds."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


def large_model() -> HMM:
    """An untrained model. Training would estimate its occupancy from the text; here it is uniform."""
    model = build(STATES, CLASSES).eval().requires_grad_(False)
    live = STATES // CLASSES
    model.visits, model.ending = torch.full((STATES,), 1 / STATES), torch.full((live,), 1 / live)
    return model


def answer(app: Any, views: HMMViews, request: tuple[str, str, Any]) -> tuple[float, float]:
    """The seconds of an answer that is computed anew."""
    views.recent = {}
    replies: list[Any] = []
    found = spent(lambda: replies.append(ask(app, *request)))
    assert replies[0].status == 200, replies[0].body
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(f"python -m benchmarks {BENCH}", description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="HMMs to measure (default: demo)")
    parser.add_argument(
        "--large", action="store_true", help=f"also an untrained model with {STATES:,} states (minutes)"
    )
    parser.add_argument("--page", action="store_true", help="only the page, in a headless Chromium")
    args = parser.parse_args(argv)
    for path in args.model or [Path("demo")]:
        views = open_views(path, "cpu")
        if args.page:
            measure_page(BENCH, str(path), str(path), requests(views)["smooth, 20 words"][2]["text"])
        else:
            measure(str(path), views)
    if args.large:
        measure(f"{STATES:,} states, {CLASSES} classes", views_of(large_model()))
