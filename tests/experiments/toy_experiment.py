"""A small experiment in a folder of its own, on a generated text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.__main__ import main

TABLES = """
title = "Toys"
published = "elsewhere"

[[tables]]
name = "sizes"
title = "Sizes"
note = "A note."
facts = { states = "model.states", k = "live", dropout = "dropout" }
figures = ["parameters", "valid", "gap", "occupancy"]
rows = [
  { run = "small", label = "HMM", published = { valid = "5.5*" } },
  { run = "large", label = "HMM", published = { valid = "5.1 P" } },
  { run = "waiting", label = "LSTM" },
]
plot = { x = "model.states", y = "valid", lines = "model.emission" }

[[tables]]
name = "partition"
title = "Without a partition"
analysis = "unpartitioned"
figures = ["gradient_noise_by_class", "gradient_noise_anywhere"]
rows = [{ run = "small" }]
"""

RUN = """
[data]
source = "{source}"

[model]
states = {states}
emission = "brown"
classes = 2

[batches]
lanes = 4
window = 16

[train]
learner = "em"
epochs = 2
"""


def make_experiment(folder: Path) -> Path:
    """The experiment `toys` in `folder`, with the runs small and large."""
    words, rng = np.array(["a", "cat", "dog", "sees", "the"]), np.random.default_rng(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(200)) + "\n")
    toys = folder / "toys"
    toys.mkdir()
    (toys / "tables.toml").write_text(TABLES)
    share_paper(toys, "scaling_hmm_lm")
    for name, states in (("small", 4), ("large", 8)):
        (toys / f"{name}.toml").write_text(RUN.format(source=text.as_posix(), states=states))
    return toys


def share_paper(folder: Path, *papers: str) -> None:
    """Let a folder declare what papers of ours declare."""
    lines = [f"from experiments.{paper}.paper import PAPER as {paper}" for paper in papers]
    (folder / "paper.py").write_text("\n".join([*lines, f"PAPER = {' | '.join(papers)}\n"]))


def run(toys: Path, *words: object, of: str = "") -> int:
    """`python -m experiments run` in this process (many runs: in processes of their own)."""
    name = f"{toys}/{of}" if of else str(toys)
    return main(["run", name, "--runs", str(toys.parent / "runs"), *map(str, words)])


def read(toys: Path, name: str) -> dict[str, Any]:
    return json.loads((toys / "results" / f"{name}.json").read_text())
