"""The DenseHMM experiments: their data, their batches, and their way from a TOML to a table."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from toy_experiment import share_paper

from experiments.__main__ import main
from experiments.densehmm import data as dense_data
from experiments.densehmm.cells import dense_em, matrices, summary
from experiments.densehmm.config import DenseModel, DenseRun, DenseTrain
from experiments.experiment import find
from trellis.estimators import DenseHMM
from trellis.testing.problems import random_vectors

TABLES = """
title = "Toys"
published = "elsewhere"
kind = "dense"

[[tables]]
name = "cells"
title = "Cells"
facts = { n = "model.states", l = "model.length" }
figures = ["mad_em", "mad_direct", "nll_standard", "seconds_em"]
rows = [{ run = "cell", published = { mad_em = "0.1" } }, { run = "waiting" }]
plot = { x = "n, l", y = ["mad_em", "mad_direct"] }
"""
CELL = "[model]\nstates = 3\nlength = 2\n[train]\nruns = 3\niterations = 2\nepochs = 3\ndirect_epochs = 5\n"
TOLERANCE = 1e-8


def test_rare_symbols_become_one() -> None:
    counts = Counter({"a": 900, "b": 95, "c": 3, "d": 2})
    assert set(dense_data.merge_rare(counts, 0.01).values()) == {"a", "b", "\0rare"}
    assert set(dense_data.merge_rare(counts, 0.001).values()) == {"a", "b", "c", "d"}


@pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA does not name the folder of the data")
@pytest.mark.parametrize(("source", "size", "number", "longest"), [("tags", 42, 1000, 40), ("proteins", 21, 1024, 512)])
def test_sequences_of_the_paper(source: str, size: int, number: int, longest: int) -> None:
    sequences, symbols = dense_data.read(source)
    assert (len(sequences), symbols, max(map(len, sequences))) == (number, size, longest)
    split = dense_data.split_half(source, seed=1)
    assert len(split.train.lengths) + len(split.test.lengths) == number
    assert np.isclose(split.truth.sum(), 1)


def test_synthetic_sequences_have_the_cooccurrences_of_their_model() -> None:
    split = dense_data.synthetic(3, 4, seed=2)
    assert split.train.lengths.tolist() == split.test.lengths.tolist() == [200] * 10
    rows, lengths = split.test.rows()
    assert rows.shape == (10, 200)
    assert lengths.tolist() == [200] * 10
    assert split.truth.shape == (4, 4)
    found = dense_data.counted(*split.test, 4)
    assert np.abs(found - split.truth).mean() < 0.02


def test_runs_in_one_batch_are_those_of_the_estimator() -> None:
    config = DenseRun(model=DenseModel(states=3, length=2), train=DenseTrain(runs=2, iterations=3, epochs=4))
    splits = [dense_data.synthetic(3, 3, seed) for seed in range(2)]
    vectors = random_vectors(3, 3, 2, seed=0, runs=2)
    for run, found in enumerate(dense_em(config, splits)):
        model = DenseHMM(3, 2, n_features=3, init_params="", n_iter=3, tol=-np.inf, mstep_epochs=4)
        for role, values in vectors.items():
            setattr(model, f"{role}_", values[run].numpy())
        model.fit(*splits[run].train)
        np.testing.assert_allclose(found.transition, model.transmat_, atol=TOLERANCE)
        np.testing.assert_allclose(found.emission, model.emissionprob_, atol=TOLERANCE)


def test_matrices_are_factorised() -> None:
    train = DenseTrain(models="softmax normAbsLin", runs=3, repeats=2, direct_epochs=200)
    figures = matrices(DenseRun(task="matrices", model=DenseModel(states=3, length=3), train=train))
    assert 0 < figures["softmax_25"] <= figures["softmax"] <= figures["softmax_75"] < 0.2
    assert figures["softmax_after_100"] >= figures["softmax"]
    assert figures["normAbsLin"] > 0


def test_medians_and_quartiles() -> None:
    assert summary("x", [4.0, 1.0, 3.0, 2.0, np.inf]) == {"x_25": 2.0, "x": 3.0, "x_75": 4.0}


def test_from_a_toml_to_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "toys"
    folder.mkdir()
    (folder / "tables.toml").write_text(TABLES)
    share_paper(folder, "densehmm")
    (folder / "cell.toml").write_text(CELL)
    assert main(["run", f"{folder}/cell"]) == 0
    result = json.loads((folder / "results" / "cell.0.json").read_text())
    assert result["figures"]["symbols"] == 3
    assert {f"{metric}_{model}" for metric in ("mad", "nll") for model in ("em", "direct", "standard", "fair")} < set(
        result["figures"]
    )
    capsys.readouterr()
    assert main(["table", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "filled 4/8" in shown
    assert f"{result['figures']['mad_em']:.5f} ({result['figures']['mad_em_25']:.5f}/" in shown
    pytest.importorskip("matplotlib", reason="matplotlib is missing")
    assert main(["plot", str(folder)]) == 0
    assert "dense direct" in (folder / "plots" / "cells.svg").read_text(encoding="utf-8")


def test_every_run_of_the_paper_can_be_read() -> None:
    experiment, _ = find("densehmm")
    named = {row.run for table in experiment.tables for row in table.rows}
    assert named == set(experiment.configs)
    assert len(named) == 12 + 30 + 6 + 1
