"""A large HMM in the training loop: dropout that goes on after an interruption as if there had been none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from corpora import split, vocabulary
from trellis.config import BatchConfig, TrainConfig
from trellis.corpus import Streams
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.learning.em import EMLearner
from trellis.learning.gradient import GradientLearner
from trellis.tasks.lm import evaluate
from trellis.training.loop import fit
from trellis.training.state import TrainState

MODEL = HMMConfig(
    states=12, params="neural", dim=6, dropout="state", dropout_rate=0.5, dropout_end=0.25, net_dropout=0.2
)
LOW_RANK = replace(MODEL, params="lowrank", features=5, band=3, feature_dropout=0.2)
PARTITION = Partition(torch.tensor([0, 1, 2, 2, 1, 0, 2]), [4, 4, 4])
TRAIN = TrainConfig(learner="gradient", epochs=4, lr=0.02, average=0.9, schedule="cosine", checkpoint_steps=3)


def train(
    folder: Path, config: TrainConfig = TRAIN, model: HMMConfig = MODEL, partition: Partition | None = PARTITION
) -> tuple[HMM, TrainState]:
    torch.manual_seed(1)
    hmm = HMM.build(vocabulary(), model, True, 0, partition)
    batches = Streams(split(), 3, 5, rotate=True)
    learner = GradientLearner(hmm, config, TRAIN.total_steps(len(batches)))
    valid = Streams(split(seed=1), 1, 50)
    state = fit(learner, batches, lambda: evaluate(hmm, valid).perplexity, config, folder, resume=True)
    return hmm, state


@pytest.mark.parametrize("model", [MODEL, LOW_RANK], ids=lambda model: model.params)
@pytest.mark.parametrize("partition", [PARTITION, None], ids=["classes", "full"])
def test_a_training_in_two_parts_ends_with_the_same_bits(
    tmp_path: Path, model: HMMConfig, partition: Partition | None
) -> None:
    whole, state = train(tmp_path / "whole", TRAIN, model, partition)
    train(tmp_path / "parts", replace(TRAIN, max_steps=state.step // 2 + 1), model, partition)
    parts, again = train(tmp_path / "parts", TRAIN, model, partition)
    assert again.step == state.step
    assert again.best <= state.best  # it may be that of the evaluation where the first part ends
    for (name, one), other in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert int(whole.dropout.draws) == state.step


def test_training_learns(tmp_path: Path) -> None:
    _, state = train(tmp_path, replace(TRAIN, epochs=10))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert state.best is not None
    assert state.best < len(vocabulary())
    assert len(lines) >= 10


def test_each_epoch_of_a_rotating_stream_reads_every_token_once() -> None:
    batches = Streams(split(), 3, 5, seed=2, rotate=True)
    epochs = [torch.cat([b.tokens[r, : b.lengths[r]] for b in batches for r in range(len(b.tokens))]) for _ in range(3)]
    expected = torch.from_numpy(split().tokens).long().bincount()
    assert all(torch.equal(tokens.bincount(), expected) for tokens in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert BatchConfig().rotate is False


@pytest.mark.parametrize("model", [MODEL, replace(MODEL, params="table")], ids=["neural", "dropout"])
def test_em_refuses_what_it_cannot_re_estimate(model: HMMConfig) -> None:
    with pytest.raises(TrellisError, match=r'use train\.learner = "gradient"'):
        EMLearner(HMM.build(vocabulary(), model, True, 0, PARTITION), TrainConfig())
