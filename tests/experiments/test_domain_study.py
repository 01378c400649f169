"""The study of LDS vectors in two kinds of text: its figures on made-up vectors, and what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.tagging.domain_study import FOUND, study

PAGE = Path(__file__).parents[2] / "docs" / "tagging.md"
ROWS = {
    "lds-50": "| `lds` | {} % | {} |",
    "lds-50-centred": "| `lds-centred` | {} % (chance: 50 %) | {} |",
    "word2vec-50": "| word2vec | {} % | {} |",
}


def test_vectors_of_two_texts() -> None:
    """Two texts that differ in their mean alone are told apart until the mean is removed."""
    random = np.random.default_rng(0)
    tags = np.array(["NOUN", "VERB"] * 100)
    own = np.where(tags == "NOUN", 1.0, -1.0)[:, None] * np.array([1.0, 0.0, 0.0])
    texts = [own + shift * np.array([0.0, 3.0, 0.0]) + 0.1 * random.standard_normal((200, 3)) for shift in (-1, 1)]
    found = study([[rows] for rows in texts], [tags, tags])
    assert found["separation"] == 100.0
    assert found["cosine_NOUN"] == pytest.approx(-0.8, abs=0.02)  # (1, -3) and (1, 3)
    centred = study([[rows - rows.mean(0)] for rows in texts], [tags, tags])
    assert centred["separation"] < 65.0
    assert centred["cosine_NOUN"] == pytest.approx(1.0, abs=0.01)


def test_what_the_page_says_was_found() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    said = {name: (f"{one['separation']:.0f}", f"{one['cosine_NOUN']:.2f}") for name, one in found.items()}
    page = " ".join(PAGE.read_text(encoding="utf-8").split()).replace("−", "-")
    for name, row in ROWS.items():
        assert row.format(*said[name]) in page
