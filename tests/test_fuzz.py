"""The fuzzers notice tracebacks, hangs, memory and control characters, and every case can be repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fuzz import cli, harness
from fuzz.__main__ import names
from fuzz.mutations import changed_bytes, changed_json, changed_text
from trellis.errors import TrellisError

TARGETS = ["caches", "checkpoints", "cli", "config", "corpora", "estimators", "explore", "models", "queries", "readers"]


def target(case: Callable[[Random], object]) -> type[harness.Fuzzed]:
    class Target:
        def __init__(self, folder: Path) -> None:
            """Nothing to prepare."""

        def honest(self) -> None:
            """Nothing to compute."""

        def case(self, random: Random) -> None:
            case(random)

    return Target


def fail(error: BaseException) -> object:
    raise error


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its limits, logs and warnings."""
    monkeypatch.setattr(harness.resource, "setrlimit", lambda *limits: None)
    monkeypatch.setattr(harness.logging, "disable", lambda level: None)
    monkeypatch.setattr(harness.warnings, "simplefilter", lambda action: None)
    monkeypatch.setattr(harness, "set_quiet", lambda quiet: None)
    monkeypatch.setattr(harness.extensions, "entry_points", harness.entry_points)
    monkeypatch.setenv("TRELLIS_CACHE", "unused")


def test_every_target_is_found() -> None:
    assert names() == TARGETS


@pytest.mark.parametrize(
    ("case", "accepted", "rejected", "findings"),
    [
        (lambda random: None, 5, 0, 0),
        (lambda random: fail(TrellisError("One sentence.")), 0, 5, 0),
        (lambda random: fail(KeyError("x")), 0, 0, 1),
        (lambda random: fail(MemoryError()), 0, 0, 1),
        (lambda random: fail(TrellisError("")), 0, 5, 1),
        (lambda random: fail(harness.FindingError("the result is NaN")), 0, 0, 1),
    ],
)
def test_outcomes(
    case: Callable[[Random], object], accepted: int, rejected: int, findings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run("toy", target(case), 0, 60.0, 5) == (1 if findings else 0)
    out, err = capsys.readouterr()
    line = json.loads(out)
    assert (line["accepted"], line["rejected"], line["findings"]) == (accepted, rejected, findings)
    assert line["cases"] == 5
    assert ("python -m fuzz toy --seed 0 --case 0" in err) == bool(findings)


def test_an_interrupt_ends_a_run_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    left = iter([None, None, KeyboardInterrupt()])
    kind = target(lambda random: fail(error) if (error := next(left)) else None)
    assert harness.run("toy", kind, 0, 60.0, 5) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 2


def test_messages() -> None:
    assert harness.complaint("One sentence, with an é.") == ""
    assert {harness.complaint(text) for text in ("\x1b[31mred", "two\nlines", "\ud800")} == {
        "a message with control characters"
    }


def test_a_hang(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(harness, "SLOW", 0.05)
    assert harness.run("toy", target(lambda random: time.sleep(30)), 0, 60.0, 1) == 1
    assert "Slow" in capsys.readouterr().err


def test_neither_compilation_nor_a_busy_machine_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_for(seconds: float) -> None:
        harness.CLOCK.on_start(None)
        begun = time.process_time()
        while time.process_time() - begun < seconds:
            sum(range(1000))
        harness.CLOCK.on_end(None)

    monkeypatch.setattr(harness, "SLOW", 0.1)
    monkeypatch.setattr(harness, "WAITING", 1000)
    before = harness.CLOCK.seconds()
    assert harness.run("toy", target(lambda random: compile_for(0.3)), 0, 60.0, 1) == 0
    assert harness.CLOCK.seconds() - before < 0.3
    assert harness.run("toy", target(lambda random: time.sleep(0.2)), 0, 60.0, 1) == 0


def test_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    peaks = iter([100 << 20, 150 << 20, 201 << 20])
    monkeypatch.setattr(harness, "peak_memory", lambda: next(peaks))
    assert harness.run("toy", target(lambda random: None), 0, 60.0, 2) == 1
    assert "201 MB, more than 200 MB" in capsys.readouterr().err


def test_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    waits.write_text("#!/bin/sh\nexec sleep 30\n")
    waits.chmod(0o755)
    monkeypatch.setattr(cli.sys, "executable", str(waits))
    monkeypatch.setattr(cli, "SLOW", 0.01)
    with pytest.raises(harness.FindingError, match="did not end"):
        cli.new_process(["info"], b"", False)


def test_a_case_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    drawn: list[float] = []
    kind = target(lambda random: drawn.append(random.random()))
    harness.run("toy", kind, 7, 60.0, 4)
    assert harness.replay("toy", kind, 7, 2) == 0
    assert drawn[4] == drawn[2] != drawn[1]
    assert harness.replay("toy", target(lambda random: fail(KeyError("x"))), 7, 2) == 1
    assert "KeyError" in capsys.readouterr().err


def test_mutations_change_most_input() -> None:
    text, value = "a b\nc d\n" * 9, {"a": [1, {"b": "x"}], "c": 0.5}
    seeds = [Random(seed) for seed in range(200)]
    assert sum(changed_bytes(random, text.encode()) != text.encode() for random in seeds) > 150
    assert sum(changed_text(random, text) != text.encode() for random in seeds) > 150
    assert sum(repr(changed_json(random, value)) != repr(value) for random in seeds) > 150
