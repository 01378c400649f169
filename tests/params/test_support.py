"""Support sets: who may say what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from corpora import WORDS, split, vocabulary
from trellis.config import ModelConfig
from trellis.corpus import Corpus
from trellis.errors import TrellisError
from trellis.params.support import SUPPORTS, by_class

CORPUS = Corpus(vocabulary(), {"train": split()}, "made up")


def support(**fields) -> torch.Tensor:
    made = SUPPORTS[fields["emission"]](CORPUS, replace(ModelConfig(), **fields), 0)
    assert made is not None
    return made


def test_brown_classes_partition_the_states() -> None:
    made = support(emission="brown", states=12, classes=3)
    assert made.shape == (len(WORDS), 4)
    assert sorted(made.unique().tolist()) == list(range(12))
    for one in made:
        for other in made:
            shared = len(set(one.tolist()) & set(other.tolist()))
            assert shared in (0, 4)


def test_cloned_states_belong_to_one_word() -> None:
    made = support(emission="cloned", states=2 * len(WORDS))
    assert sorted(made.flatten().tolist()) == list(range(2 * len(WORDS)))


def test_uniform_sets_have_no_state_twice_and_repeat_with_the_seed() -> None:
    made = support(emission="uniform", states=9, live=5)
    assert all(len(set(row.tolist())) == 5 for row in made)
    assert torch.equal(made, support(emission="uniform", states=9, live=5))


def test_full_is_no_support() -> None:
    assert SUPPORTS["full"](CORPUS, ModelConfig(), 0) is None
    assert by_class(vocabulary().encode(WORDS), 1).shape == (len(WORDS), 1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"emission": "brown", "states": 10, "classes": 3}, "try model.states = 9"),
        ({"emission": "cloned", "states": 3}, "shared evenly by 7 words"),
        ({"emission": "uniform", "states": 4, "live": 5}, "between 1 and model.states = 4"),
        ({"emission": "brown", "states": 4, "classes": 0}, "shared evenly"),
    ],
)
def test_what_does_not_fit_is_told(fields, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        support(**fields)
