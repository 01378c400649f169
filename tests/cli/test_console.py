"""What a terminal shows, with rich and without it: the same numbers, 80 columns, nothing that steers the terminal."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from trellis.cli.commands import score
from trellis.cli.commands.eval import tables
from trellis.cli.commands.infill import RANKED, completed
from trellis.cli.commands.states import SUMMARIES
from trellis.cli.console import Block, Facts, Lines, Table
from trellis.families.hmm.states import StateSummary
from trellis.models.base import Infilled
from trellis.report.format import Column, perplexity
from trellis.tasks.bands import Band
from trellis.tasks.bootstrap import Difference
from trellis.tasks.compare import Against, Context, Row

NAMES = ["model", "states", "parameters", "train", "valid", "test", "tokens_per_second"]
WIDTH = 80


@pytest.fixture(params=["rich", "plain"], autouse=True)
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with rich and as if it were not installed."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    if request.param == "plain":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
            monkeypatch.setitem(sys.modules, name, None)
    return request.param


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*blocks: Block) -> str:
        for block in blocks:
            block.show()
        captured = capsys.readouterr()
        assert captured.err == ""
        assert all(len(line.rstrip()) <= WIDTH for line in captured.out.splitlines())
        return captured.out

    return run


def test_figures_fit_and_are_formatted(shown: Callable[..., str]) -> None:
    out = shown(
        Table(
            "perplexity",
            [
                dict(zip(NAMES, ["unigram", None, 8624, 437.61, 390.14, 387.58, 1259506.4], strict=True)),
                dict(zip(NAMES, ["hmm", 32768, 1_234_567_890, 1e6 / 3, math.inf, math.nan, 0.4], strict=True)),
            ],
        )
    )
    lines = out.splitlines()
    assert ["model", "states", "parameters", "train", "valid", "test", "tokens/s"] in [line.split() for line in lines]
    assert ["unigram", "–", "8,624", "437.6", "390.1", "387.6", "1,259,506"] in [line.split() for line in lines]
    assert ["hmm", "32,768", "1,234,567,890", "333,333.3", "∞", "–", "0"] in [line.split() for line in lines]


def test_numbers_are_aligned_to_the_right(shown: Callable[..., str]) -> None:
    out = shown(Table("", [("a", 1.0), ("b", 1000.0)], {0: Column("name"), 1: Column("x", perplexity)}))
    one, thousand = (next(line.rstrip() for line in out.splitlines() if end in line) for end in ("1.0", "1,000.0"))
    assert len(one) == len(thousand)


def test_states_fold_without_losing_a_word(shown: Callable[..., str]) -> None:
    words = [(f"word-number-{i}", 0.1) for i in range(10)]
    state = StateSummary(7, 0.0312, 1.0, words, [(3, 0.9), (12345, 0.0512)])
    out = shown(Table("states", [state._asdict()], SUMMARIES))
    assert all(word in out for word, _ in words)
    assert {"7", "3.1%", "(.900)", "12345", "(.051)"} <= set(out.split())


def test_hostile_words_are_text(shown: Callable[..., str]) -> None:
    out = shown(Table("\x1b[31mgap", [("[bold]x[/bold]", 0.25), ("\x1b[2J", 0.125), ("w" * 500, 0.1)], RANKED))
    assert "[bold]x[/bold]" in out
    assert "\x1b" not in out
    assert r"\x1b[2J" in out
    assert {"0.250", "0.125", "0.100"} <= set(out.split())


def test_comparison_gives_every_model_a_letter(shown: Callable[..., str]) -> None:
    bands = [Band("1-9", 40, 1234.5), Band("<eos>", 60, 7.0)]
    first = Row("runs/a", "hmm", "sentences", 100, -500.0, 148.4, bands, bands)
    contexts = [Context("the [cat] " + "sleeps " * 20, -9.0, -2.0)]
    against = Against(Difference(-28.4, -30.0, -26.5, 0.0002, True), [], contexts)
    other = replace(first, model="runs/b", perplexity=120.0, order="streams", against_first=against)
    mixed = replace(other, family="interpolated", order="mixed", weights=[0.25, 0.75])
    lines = [line.split() for line in shown(*tables([first, other, mixed])).splitlines()]
    assert ["A", "runs/a", "hmm", "148.4", "100", "reset"] in lines
    assert ["B", "runs/b", "hmm", "120.0", "100", "carried"] in lines
    assert ["C", "0.250", "A", "+", "0.750", "B", "interpolated", "120.0", "100", "mixed"] in lines
    assert "B is significantly better than A in perplexity (p = 0.0002)." in map(" ".join, lines)
    assert lines.count(["1-9", "40", "1,234.5", "1,234.5", "1,234.5"]) == 2
    assert ["B", "-28.40", "-30.00", "-26.50", "0.0002"] in lines
    assert ["where", "A", "loses", "most", "to", "B"] in lines
    assert ["where", "B", "loses", "most", "to", "A"] not in lines


def test_comparison_with_an_open_vocabulary(shown: Callable[..., str]) -> None:
    first = Row("runs/a", "hmm", "sentences", 100, -500.0, 148.4, [], [], unknown=0.1, unk_is_trained=False)
    first = replace(first, bits_per_character=1.5, open_bits_per_character=2.0)
    against = Against(None, [], [], Difference(0.01, -0.02, 0.04, 0.4))
    other = replace(first, tokens=300, perplexity=7.0, against_first=against, unknown=0.0)
    lines = [line.split() for line in shown(*tables([first, other])).splitlines()]
    assert ["A", "runs/a", "hmm", "148.4", "1.500", "2.000", "10.0%", "100", "reset"] in lines
    assert ["B", "+0.0100", "-0.0200", "+0.0400", "0.4"] in lines
    sentences = [" ".join(line) for line in lines]
    assert "B does not differ significantly from A in open bits per character (p = 0.4)." in sentences
    assert "A was trained without <unk>, so its probability of unknown words is arbitrary." in sentences
    assert not [line for line in lines if line[:2] == ["perplexity", "by"]]


def test_infilled_shows_every_answer(shown: Callable[..., str]) -> None:
    answer = Infilled([[("of", 0.5)], [("is", 0.75)]], "a of b is", ["a x b y", "a z b w"], -7.0, proved=True)
    row = {"text": "a ___ b ___", **answer._asdict()}
    out = shown(*completed(row))
    assert ["best", "(proved)", "a", "of", "b", "is"] in [line.split() for line in out.splitlines()]
    assert "best found (not proved" in shown(*completed(row | {"proved": False}))
    assert all(part in out for part in ("a ___ b ___", "gap 1", "0.500", "gap 2", "0.750", "a x b y", "a z b w"))


def test_scores_with_tokens(shown: Callable[..., str]) -> None:
    row = {"log_prob": -12.345, "perplexity": 1234.56, "text": "the cat"}
    out = shown(*score.tables([row, row | {"tokens": [("the", -2.0), (" ", -math.inf)]}]))
    assert out.count("-12.35") + out.count("-12.34") == 2
    assert ["the", "-2.00"] in [line.split() for line in out.splitlines()]
    assert "␣" in out


def test_rows_are_written_in_the_way_of_their_names(shown: Callable[..., str]) -> None:
    rows = [{"model": "runs/ptb", "perplexity": 123.456, "tokens": 82430}]
    out = shown(Table("evaluation", rows))
    assert out.splitlines()[0].strip() == "evaluation"
    assert ["runs/ptb", "123.5", "82,430"] in [line.split() for line in out.splitlines()]


def test_nothing_to_show_is_said(shown: Callable[..., str]) -> None:
    assert shown(Table("cache", [])) == "cache: nothing to show\n"


def test_facts_are_aligned(shown: Callable[..., str]) -> None:
    facts = {"family": "hmm", "parameters": 556096, "carry": False, "figures": {"test": 164.86, "tokens_per_second": 9}}
    assert shown(Facts(facts)).splitlines() == [
        "family               hmm",
        "parameters           556,096",
        "carry                False",
        "figures",
        "  test               164.9",
        "  tokens_per_second  9",
    ]


def test_names_of_facts_are_escaped(shown: Callable[..., str]) -> None:
    assert shown(Facts({"\x1b[31m": {"\x07": "\x9b"}})).split() == ["\\x1b[31m", "\\x07", "\\x9b"]


def test_lines_are_left_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(["a " * 100 + "[b]", "tab\there"]).show()
    assert capsys.readouterr().out == "a " * 100 + "[b]\ntab\there\n"


def test_of_a_long_path_the_end_is_shown(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    rows = [{"model": f"runs/{'long/' * 20}{name}", "perplexity": 123.456, "tokens": 82430} for name in ("one", "two")]
    lines = [line.split() for line in shown(Table("evaluation", rows)).splitlines() if "123.5" in line]
    assert [line[1:] for line in lines] == [["123.5", "82,430"]] * 2
    assert all(
        line[0].startswith("…") and line[0].endswith(name) for line, name in zip(lines, ("one", "two"), strict=True)
    )


@pytest.mark.parametrize("words", [["cache"], ["cache", "--json"], ["info", "demo"]])
def test_nobody_reads_standard_output(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trellis", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
