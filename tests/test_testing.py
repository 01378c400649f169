"""The conformance suites themselves: they need no test framework, their examples run, and they see what is wrong."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from trellis import testing
from trellis.cli.console import Answer
from trellis.corpus.read import READERS, Reader
from trellis.emissions import Categorical
from trellis.families.hmm.parameters import TableParams
from trellis.families.ngram.model import NGram
from trellis.registry import Family, find_family
from trellis.testing import check_command, check_emission, check_family, check_parameters, check_reader
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense
from trellis.types import Potentials

ALONE = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
import trellis.testing, trellis.testing.oracle
"""


def test_no_test_framework_is_needed() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True)


@pytest.mark.parametrize("name", testing.__all__)
def test_examples(name: str) -> None:
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(getattr(testing, name), name, globs={}):
        runner.run(example)
    assert runner.tries > 1
    assert runner.failures == 0


class Transposed(Dense):
    """Multiplies from the wrong side."""

    def backward(self, message: Tensor) -> Tensor:
        return message @ self.matrix


class Detached(Dense):
    """Loses gradients."""

    def forward(self, probs: Tensor) -> Tensor:
        return probs @ self.matrix.detach()


class Hasty(Dense):
    """Goes too far in its M-step."""

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Hasty:
        return Hasty(super().maximised(statistics.square(), pseudocount).matrix)


class Drawn(Dense):
    """Draws from the wrong row."""

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return super().sample_next((states + 1) % self.num_states, uniform)


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        (Transposed, "`backward` is A m"),
        (Detached, "finite differences"),
        (Hasty, "lowers the likelihood"),
        (Drawn, "draws from the rows"),
    ],
)
def test_wrong_transitions(kind: type[Dense], claim: str) -> None:
    with pytest.raises(AssertionError, match=claim):
        testing.check_transition(kind, distributions(seeded(1), 4, 4))


class Blind(Categorical):
    """Sees a word where there is none."""

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        return super().potentials(observations.clamp(min=0), all_observed)


class Flat(Categorical):
    """Smooths what should be the maximum."""

    def maximised(self, statistics: Tensor, prior: float | Tensor) -> Flat:
        return Flat(super().maximised(statistics, prior + 0.5).table, None, self.num_states)


@pytest.mark.parametrize(("kind", "claim"), [(Blind, "Missing observations"), (Flat, "The M-step maximises")])
def test_wrong_emissions(kind: type[Categorical], claim: str) -> None:
    with pytest.raises(AssertionError, match=claim):
        check_emission(kind(distributions(seeded(2), 3, 4).T.log(), None, 3))


class Forgetful(TableParams):
    """Leaves its numbers behind when it is restored."""

    @classmethod
    def restore(cls, words: list[str], settings: Any, tensors: dict[str, Tensor]) -> Forgetful:
        return cls(settings["states"], len(words), seed=7).double()


class Late(TableParams):
    """Drops states after it has normalised."""

    def transition(self, draw: Any) -> Dense:
        whole = self.transition_logits.softmax(-1)
        return Dense(whole if draw.ids is None else whole[draw.ids][:, draw.ids])


@pytest.mark.parametrize(("kind", "claim"), [(Forgetful, "`restore` makes the same"), (Late, "then normalised")])
def test_wrong_parameters(kind: type[TableParams], claim: str) -> None:
    with pytest.raises(AssertionError, match=claim):
        check_parameters(kind(5, 6))


class Overflowing(NGram):
    """Gives too much to every word."""

    family = "overflowing"

    def forecast(self, state: Any) -> Tensor:
        return super().forecast(state) + 0.1


def test_a_wrong_family() -> None:
    here = f"{__name__}:Overflowing"
    family = Family(**vars(find_family("bigram")) | {"name": "overflowing", "model": here})
    with pytest.raises(AssertionError, match="The family overflowing"):
        check_family(family)


def open_ended(path: Path, recipe: Any, report: Any) -> Iterator[str]:
    yield path.read_text()


def test_wrong_readers() -> None:
    check_reader(READERS["text"], b"a b\nc\n\nd\n", [["a b", "c"], ["d"]])
    with pytest.raises(AssertionError, match="ends within a sentence"):
        check_reader(Reader(open_ended), b"a b", [["a b"]])
    with pytest.raises(AssertionError, match="reported 0 of 4 bytes"):
        check_reader(Reader(open_ended), b"a b\n", [["a b"]])


def test_wrong_commands() -> None:
    module = ModuleType("speechless")
    vars(module).update(SUMMARY="nothing", EXAMPLE="trellis loud", arguments=lambda parser: None)
    vars(module).update(run=lambda args: Answer({"set": torch.ones(1)}))
    with pytest.raises(AssertionError, match=r"EXAMPLE is 'trellis loud'(.|\n)*JSON"):
        check_command("speechless", module)
