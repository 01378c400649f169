"""Runs that mix trained models: the same figures as `compare`, with weights from the validation set."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from corpora import WORDS, split
from experiments.paper import Job
from experiments.scaling_hmm_lm.mixtures import MixtureRun, run_mixture
from trellis.config import run_config
from trellis.tasks.compare import compare
from trellis.training.run import train


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    text = split(300)
    lines = [" ".join(WORDS[i] for i in text.tokens[a : b - 1]) for a, b in pairwise(text.sentences)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    for family, sets in {"bigram": [], "lstm": ["model.dim=4", "train.epochs=2"]}.items():
        data = {"source": str(tmp_path / "text.txt"), "valid_fraction": 0.2, "test_fraction": 0.2}
        train(run_config({"data": data, "model": {"family": family}}, sets), tmp_path / f"{family}.0")
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"cache": True}, {"ngram": 3, "cache": True}])
def test_figures_are_those_of_compare(options: dict, runs: Path) -> None:
    names = ["bigram.0", "lstm.0"]
    config = MixtureRun(runs=" ".join(names), device="cpu", **options)
    outcome = run_mixture(Job("mixture", config, runs, False, {}, lambda run: None))
    for part in ("valid", "test"):
        row = compare(
            [runs / name for name in names], None, part, interpolate=True, contexts=0, cache="cache" in options,
            ngram=options.get("ngram", 0),
        )[-1]  # fmt: skip
        assert outcome.figures[part] == pytest.approx(row.perplexity, rel=1e-12)
    weights = [value for name, value in outcome.figures.items() if name.startswith("weight_")]
    assert sum(weights) == pytest.approx(1)
    assert len(weights) == 2 + ("ngram" in options) + ("cache" in options)
    assert ("cache_decay" in outcome.figures) == ("cache" in options)
