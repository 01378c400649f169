"""Every family of the package does what a family must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trellis.registry import FAMILIES, Family, find_family
from trellis.testing import check_family

SMALL: dict[str, dict[str, Any]] = {
    "hmm": {"states": 4},
    "hmm-tagger": {"states": 4},
    "fhmm": {"layers": 2, "states": 3},
    "lds": {"dim": 3},
    "feedforward": {"dim": 4},
    "lstm": {"dim": 4},
    "rnn": {"dim": 4},
    "pcfg": {"nonterminals": 3, "preterminals": 4, "dim": 4},
}
MORE: list[tuple[str, dict[str, Any]]] = [
    ("hmm", {"states": 4, "learner": "em", "order": "sentences"}),
    ("hmm", {"states": 6, "params": "lowrank", "dim": 4, "features": 4, "learner": "gradient", "dropout": "state"}),
    ("hmm", {"states": 20, "params": "neural", "dim": 4, "learner": "gradient", "emission": "cloned"}),
    ("lds", {"dim": 3, "learner": "subspace"}),
    ("pcfg", {"nonterminals": 4, "preterminals": 4, "rank": 3, "params": "table"}),
    ("pcfg", {"nonterminals": 4, "preterminals": 4, "rank": 3, "dim": 4, "dropout_rate": 0.5}),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_conformance(name: str) -> None:
    check_family(name, **SMALL.get(name, {}))


@pytest.mark.parametrize(("name", "settings"), MORE, ids=str)
def test_other_ways_to_learn(name: str, settings: dict[str, Any]) -> None:
    check_family(name, **settings)


def test_what_fails_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    broken = Family(**vars(find_family("unigram")) | {"report": "trellis.nowhere:sections"})
    with pytest.raises(AssertionError, match=r"The family unigram: \d+ of 12 checks fail(.|\n)*trellis.nowhere"):
        check_family(broken)
    assert find_family("unigram") != broken
    assert not Path("runs").exists()
