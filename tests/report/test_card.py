"""The model card of a run: sizes, corpus and licence, scores, limits and options."""

from pathlib import Path
from typing import Any

import pytest

import trellis
from trellis.corpus.licences import LICENCES, UNKNOWN, licence_of
from trellis.corpus.sources import NAMED
from trellis.corpus.tagged import TAGGED
from trellis.registry import FAMILIES, find_family
from trellis.report.card import CARD, write_card

SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs"] * 15


def test_every_named_corpus_has_a_licence() -> None:
    assert LICENCES.keys() == NAMED.keys() | TAGGED.keys()
    assert licence_of("my_text.txt") == UNKNOWN


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_states_its_use_and_its_limits(name: str) -> None:
    family = find_family(name)
    assert family.use.endswith(".")
    assert family.limits.endswith(".")


@pytest.mark.parametrize("options", [{"states": 3, "epochs": 1}, {"family": "bigram"}], ids=["hmm", "bigram"])
def test_a_run_has_a_card(options: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "my_text.txt"
    text.write_text("\n".join(SENTENCES))
    trained = trellis.train(text, tmp_path / "run", device="cpu", **options)
    card = (tmp_path / "run" / CARD).read_text()
    assert f"- parameters: {trained.model.num_parameters():,}\n" in card
    assert f"- licence: {UNKNOWN}\n" in card
    assert "my\\_text.txt" in card
    assert f"{trained.scores['test']:.1f}" in card.split("## Scores")[1].split("## Intended")[0]
    assert find_family(trained.model.family).limits in card
    assert "[data]\nsource = " in card


def test_the_licence_of_your_own_text(tmp_path: Path) -> None:
    text = ["the cat sees the dog", "a dog runs"] * 20
    trellis.train(text, tmp_path / "run", family="bigram", licence="CC0 1.0 (public domain)")
    assert "- licence: CC0 1.0 (public domain)\n" in (tmp_path / "run" / "MODEL_CARD.md").read_text()


def test_the_licence_of_a_named_corpus(tmp_path: Path) -> None:
    trained = trellis.train(SENTENCES, family="bigram")
    trained.model.about |= {"data": {"source": "wikitext-2"}, "run": {"command": "trellis train --data wikitext-2"}}
    card = write_card(tmp_path, trained.model, trained.scores).read_text()
    assert "- licence: CC BY-SA (text of Wikipedia)\n" in card
    assert "- command: `trellis train --data wikitext-2`\n" in card
