"""The explorer: seconds until an answer, the first one and later ones, and seconds of the map of all states."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.large_hmm import build
from benchmarks.report import emit
from fuzz.asgi import ask
from trellis.explore.explorer import Explorer, open_views
from trellis.explore.layout import place_states
from trellis.explore.server import application
from trellis.explore.views import Views, views_of

BENCH = "explore"
STATES, CLASSES = 65_536, 128  # of the untrained model
WORDS, TIMES = 20, 9  # words of the sentence, and measurements of an answer
LIMITS = {False: 0.1, True: 1.0}  # seconds of an answer: small models, and large ones
LARGE = 10_000  # states
MAP_LIMIT = 60.0  # seconds of the map


def requests(views: Views) -> dict[str, tuple[str, str, Any]]:
    """The requests that are measured, by name."""
    words = views.frequent_words()
    text = views.model.vocab.join((words * WORDS)[:WORDS])
    return {
        "smooth, 20 words": ("POST", "/api/smooth", {"text": text}),
        "score, 20 words": ("POST", "/api/score", {"text": text}),
        "predict": ("POST", "/api/predict", {"text": text}),
        "one state": ("GET", "/api/states/1", None),
        "a page of states": ("GET", "/api/states", None),
        "states of a word": ("GET", f"/api/states?query={words[0]}", None),
        "the map, ready": ("GET", "/api/map", None),
    }


def measure(name: str, views: Views) -> None:
    """All figures of a model."""
    app = application(Explorer([views]))
    limit = LIMITS[(views.model.num_states or 0) >= LARGE]
    asked = requests(views)
    begun = time.perf_counter()
    ask(app, *asked["smooth, 20 words"])
    first = time.perf_counter() - begun
    emit(BENCH, name, "first answer", first, "-", None, None, "s")
    begun = time.perf_counter()
    views.background(lambda work: work())
    emit(BENCH, name, "background work", time.perf_counter() - begun, "-", None, None, "s")
    for what, request in asked.items():
        seconds = median(timed(app, request) for _ in range(TIMES))
        emit(BENCH, name, what, seconds, "limit", limit, limit / seconds, "s")
    vectors, groups = views.vectors.cpu().numpy(), views.classes_of_states  # type: ignore[attr-defined]
    begun = time.perf_counter()
    place_states(vectors, None if groups is None else groups.cpu().numpy())
    seconds = time.perf_counter() - begun
    emit(BENCH, name, "computing the map", seconds, "limit", MAP_LIMIT, MAP_LIMIT / seconds, "s")


def timed(app: Any, request: tuple[str, str, Any]) -> float:
    begun = time.perf_counter()
    reply = ask(app, *request)
    seconds = time.perf_counter() - begun
    assert reply.status == 200, reply.body
    return seconds


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(f"python -m benchmarks {BENCH}", description=__doc__)
    parser.add_argument("--model", type=Path, action="append", help="HMMs to measure (default: demo)")
    parser.add_argument(
        "--large", action="store_true", help=f"also an untrained model with {STATES:,} states (minutes)"
    )
    args = parser.parse_args(argv)
    for path in args.model or [Path("demo")]:
        measure(str(path), open_views(path, "cpu"))
    if args.large:
        model = build(STATES, CLASSES).eval().requires_grad_(False)
        measure(f"{STATES:,} states, {CLASSES} classes", views_of(model))
