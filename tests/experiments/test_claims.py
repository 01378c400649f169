"""docs/papers.md is what the stored results say, and every command in it exists."""

from __future__ import annotations

import importlib.util
import shlex
from itertools import pairwise

import pytest

from experiments import claims
from experiments.__main__ import build_parser, main
from experiments.claims import Claim, Section
from experiments.experiment import HERE, find
from trellis.cli.main import find_commands, parse
from trellis.errors import TrellisError

ROOT = HERE.parent
SECTIONS = claims.sections()
CLAIMS = [(section, claim) for section in SECTIONS for claim in section.claims]
IDS = [f"{section.experiment}: {claim.claim[:60]}" for section, claim in CLAIMS]
COMMANDS = sorted({part for section, claim in CLAIMS for part in claims.command(claim, section).split("; ")} - {""})
TOY = Section("Toys", "factorial-hmm", "", [])


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims"]) == 0
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == page, "run: python -m experiments claims > docs/papers.md"


@pytest.mark.parametrize(("section", "claim"), CLAIMS, ids=IDS)
def test_a_verdict_rests_on_what_was_found(section: Section, claim: Claim) -> None:
    assert claim.verdict in claims.VERDICTS
    assert claim.ours
    for line in claim.order:
        values = [claims.value(text, section) for text in line]
        assert len(values) > 1
        assert all(one < other for one, other in pairwise(values)), line
    for file, text in claim.quotes.items():
        assert text in " ".join((ROOT / file).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists(command: str) -> None:
    program, *words = shlex.split(command.removeprefix("python -m "))
    if program == "experiments":
        assert find(build_parser().parse_args(words).name)[1] is None
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words)
    elif program == "benchmarks":
        assert importlib.util.find_spec(f"benchmarks.{words[0].replace('-', '_')}")
    elif program == "trellis":
        parse(find_commands(), words)
    else:
        assert program.startswith("experiments.")
        assert importlib.util.find_spec(program)


def test_only_what_is_not_tested_lacks_a_command() -> None:
    assert all(claim.verdict == "not tested" or claims.command(claim, section) for section, claim in CLAIMS)


def test_references() -> None:
    assert claims.shown("ptb-5-10:valid", TOY) == "295.8"
    assert claims.value("ptb-5-10:valid", TOY) == pytest.approx(295.8, abs=0.05)
    assert claims.shown("kernel-hmm/ptb-512-f32:transition_rank", TOY) == "17"
    assert claims.value("2.5", TOY) == 2.5
    assert claims.shown("ptb-[13]-10:test<valid", TOY) == "2 of 2"
    assert claims.value("ptb-[13]-10:valid<test", TOY) == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ptb-9-10:valid", "has no current result"),
        ("ptb-9*:valid<test", "No run of factorial-hmm matches 'ptb-9\\*'"),
        ("ptb-5-10:velid", "has no current result"),
    ],
)
def test_wrong_references(text: str, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        claims.shown(text, TOY)
