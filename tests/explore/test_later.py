"""Answers that take long are computed in the background, and are the same as those that are awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="starlette is not installed")

from corpora import hmm
from fuzz.asgi import ask
from trellis.emissions import Partition
from trellis.explore import later
from trellis.explore.explorer import Explorer
from trellis.explore.later import Later, NotReadyError
from trellis.explore.server import application
from trellis.explore.turns import BusyError
from trellis.explore.views import views_of
from trellis.families.hmm import normalisers, views as hmm_views
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.views import HMMViews

GAPS = "the ___ ___ sees"
PATIENCE = 60.0  # seconds


def until(question: Callable[[], Any]) -> tuple[Any, list[float]]:
    """Ask until there is an answer; also how far it was before."""
    end, waited = time.monotonic() + PATIENCE, []
    while time.monotonic() < end:
        try:
            return question(), waited
        except NotReadyError as error:
            waited.append(error.progress)
            time.sleep(0.01)
    raise TimeoutError


def softmax_model() -> HMM:
    config = HMMConfig(states=70, params="neural", dim=4, emission="brown", classes=2)
    support = Partition(torch.tensor([0, 0, 0, 1, 1, 1, 1]), [35, 35])
    model = HMM.build(hmm().vocab, config, False, 0, support).requires_grad_(False)
    model.visits = torch.full((70,), 1 / 70)
    return model


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmm_views, "AT_ONCE", 0)


def test_adjacent_gaps_are_answered_later(slow: None) -> None:
    awaited, asked = HMMViews(softmax_model()), HMMViews(softmax_model())
    asked.later = Later()
    for question in (lambda one: one.smooth(GAPS), lambda one: one.infill(GAPS, 3, True)):
        found, progress = until(lambda question=question: question(asked))
        assert progress == sorted(progress)
        assert found == question(awaited)
    assert asked.later.work is not None
    assert asked.later.work.progress == 1.0
    best = awaited.infill(GAPS, 3, True)["best"]
    assert best["log_prob"] == pytest.approx(awaited.model.log_prob(best["text"]), abs=1e-5)
    assert not best["proved"]
    assert "___" not in best["text"]


def test_the_search_is_not_worse_than_the_quick_filling(slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    views = HMMViews(softmax_model())
    quick = views.infill(GAPS, 3, True)["best"]
    monkeypatch.setattr(hmm_views, "AT_ONCE", 1 << 28)
    searched = views.infill(GAPS, 3, True)["best"]
    assert searched["proved"]
    assert searched["log_prob"] >= quick["log_prob"] - 1e-5


def test_gaps_wait_for_the_normalisers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisers, "LARGE", 70)
    views = HMMViews(softmax_model())
    views.later = Later()
    with pytest.raises(NotReadyError, match="normalisers") as found:
        views.smooth("the ___ sees")
    assert found.value.progress < 1
    views.background(lambda work: work())
    assert views.smooth("the ___ sees")["gaps"] == [1]


def test_the_server_says_how_far_it_is(slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Event()

    def solve(*given: Any) -> Any:
        assert go_on.wait(PATIENCE)
        return original(*given)

    original = hmm_views.solve
    monkeypatch.setattr(hmm_views, "solve", solve)
    explorer = Explorer([views_of(softmax_model())])
    explorer.prepare(lambda work: work())
    app, end = application(explorer), time.monotonic() + PATIENCE
    reply = ask(app, "POST", "/api/smooth", {"text": GAPS})
    assert (reply.status, reply.json["ready"], reply.json["doing"]) == (
        202,
        False,
        hmm_views.ALL_PAIRS.format(states=70),
    )
    go_on.set()
    while reply.status == 202 and time.monotonic() < end:
        reply = ask(app, "POST", "/api/smooth", {"text": GAPS})
    assert (reply.status, reply.json["gaps"]) == (200, [1, 2])


def test_one_piece_of_work_at_a_time() -> None:
    begun, go_on, queue = Event(), Event(), Later()

    def work(report: Callable[[float], None]) -> str:
        report(0.5)
        begun.set()
        assert go_on.wait(PATIENCE)
        return "done"

    with pytest.raises(NotReadyError, match="waiting for a"):
        queue.ask("a", work, "waiting for a")
    assert begun.wait(PATIENCE)
    with pytest.raises(NotReadyError, match="waiting for a") as found:
        queue.ask("a", work, "waiting for a")
    assert found.value.progress == 0.5
    with pytest.raises(NotReadyError, match="first"):
        queue.ask("b", lambda report: "b", "waiting for b")
    go_on.set()
    assert until(lambda: queue.ask("a", work, ""))[0] == "done"
    assert until(lambda: queue.ask("b", lambda report: "b", ""))[0] == "b"


def test_work_that_nobody_asks_about_is_stopped_and_can_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "PATIENCE", -1.0)
    queue, times = Later(), []

    def work(report: Callable[[float], None]) -> float:
        times.append(report(0.1))
        return float(torch.ones(2).sum())

    with pytest.raises((NotReadyError, BusyError)):
        queue.ask("a", work, "")
    assert queue.work is not None
    assert isinstance(queue.work.job.future.exception(PATIENCE), BusyError)
    monkeypatch.setattr(later, "PATIENCE", PATIENCE)
    assert until(lambda: queue.ask("a", work, ""))[0] == 2.0
    assert len(times) == 2


def test_errors_reach_those_who_ask() -> None:
    queue = Later()
    with pytest.raises(ZeroDivisionError):
        until(lambda: queue.ask("a", lambda report: 1 / 0, ""))


def test_a_result_is_kept_for_those_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if somebody else asks first after the work has ended; but not for ever."""
    queue, runs, go_on = Later(), list[str](), Event()

    def work(name: str) -> str:
        runs.append(name)
        assert go_on.wait(PATIENCE)
        return name

    def ask(name: str) -> Any:
        return queue.ask(name, lambda report: work(name), "")

    def begin(name: str) -> None:
        go_on.clear()
        with pytest.raises(NotReadyError, match=r"^$"):
            ask(name)
        go_on.set()
        assert queue.work is not None
        assert queue.work.job.future.result(PATIENCE) == name

    begin("a")
    with pytest.raises(NotReadyError, match="first"):
        ask("b")
    assert ask("a") == "a"
    begin("b")
    assert ask("b") == "b"
    begin("a")
    monkeypatch.setattr(later, "PATIENCE", -1.0)  # whoever asked has gone away
    begin("c")
    assert runs == ["a", "b", "a", "c"]
