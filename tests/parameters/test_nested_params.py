"""Nested parameters: the classes that they need, and their initial probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trellis
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.nested import NestedParams
from trellis.testing.close import assert_close

WORDS = ["a", "b", "c", "d"]
BROWN: dict[str, Any] = {"states": 4, "params": "nested", "emission": "brown", "classes": 2, "dim": 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emission": "full"}, "needs model.emission"),
        ({"class_sizes": "log"}, "classes of equal size"),
        ({"kernel": "relu"}, "has only model.kernel"),
        ({"dropout": "unstructured"}, "has only model.dropout"),
    ],
)
def test_what_does_not_fit_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        HMMConfig(**(BROWN | options))


def test_classes_must_have_equal_sizes() -> None:
    with pytest.raises(TrellisError, match="equal numbers of states"):
        NestedParams(WORDS, HMMConfig(**BROWN), Partition(torch.tensor([0, 0, 1, 1]), [1, 3]))


def test_classes_begin_with_the_frequency_of_their_words() -> None:
    params = NestedParams(WORDS, HMMConfig(**BROWN, init_std=0.0), Partition(torch.tensor([0, 0, 1, 1]), [2, 2]))
    params.shift_word_logits(torch.tensor([1.0, 2.0, 3.0, 2.0]).log())
    share = params.parts().transition.dense().view(4, 2, 2).sum(-1)
    assert_close(share.detach(), torch.tensor([3.0, 5.0]).div(8).expand(4, 2))


@pytest.mark.parametrize("dropout", ["none", "state"])
def test_a_run(dropout: str, tmp_path: Any) -> None:
    text = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 25
    options = BROWN | {"states": 8, "classes": 4, "dropout": dropout, "dropout_rate": 0.25, "factored": True}
    trained = trellis.train(text, tmp_path / "run", epochs=20, learner="gradient", lanes=4, window=8, **options)
    assert trained.scores["test"] < 0.9 * trained.scores.rows[0]["test"]  # a unigram
    loaded = trellis.load(tmp_path / "run")
    assert loaded.log_prob(text[0]) == pytest.approx(trained.model.log_prob(text[0]))
