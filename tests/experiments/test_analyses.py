"""The memory of a training step is measured with a model and batches on the GPU (pretended here)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch

from corpora import split, vocabulary
from elsewhere import THERE, pretended_gpu
from experiments import analyses
from trellis.config import run_config
from trellis.corpus import Corpus
from trellis.families.hmm.model import HMM, build
from trellis.types import Batch

BEFORE, PEAK = 100, 350
CUDA = {"memory_allocated": BEFORE, "max_memory_allocated": PEAK}
IDLE = dict.fromkeys(("reset_peak_memory_stats", "empty_cache", "synchronize"))


class Reader:
    """Reads batches where it would learn from them: the pretended GPU has no streams or graphs."""

    def __init__(self, model: HMM, *_: Any) -> None:
        self.model = model

    @torch.no_grad()
    def step(self, batch: Batch) -> None:
        batch = batch.to(self.model.device)
        likelihoods, _ = self.model.score(batch.tokens, self.model.start(len(batch.tokens)), batch.lengths)
        assert likelihoods.device == THERE


@pytest.mark.parametrize("params", ["table", "neural"])
@pytest.mark.parametrize("emission", ["full", "brown", "uniform"])
def test_memory_is_measured_where_the_model_is(emission: str, params: str) -> None:
    """The new model is built on the CPU, with state sets that are on the GPU."""
    model = {"states": 8, "emission": emission, "classes": 2, "states_per_word": 4, "params": params, "dim": 4}
    model |= {"precision": "float32"}  # a CPU has no products of bfloat16 with answers in float32
    config = run_config({"model": model, "batches": {"order": "streams", "lanes": 4, "window": 8}})
    corpus = Corpus(vocabulary(), {"train": split()}, "")
    with ExitStack() as pretended:
        pretended.enter_context(pretended_gpu())
        pretended.enter_context(mock.patch.object(analyses, "resolve", return_value=Reader))
        for name, value in {**CUDA, **IDLE}.items():
            pretended.enter_context(mock.patch(f"torch.cuda.{name}", return_value=value))
        trained = build(config, corpus).to("cuda")
        assert analyses.memory(trained, config, corpus) == {"memory": PEAK - BEFORE}
    assert analyses.memory(build(config, corpus), config, corpus) == {}
