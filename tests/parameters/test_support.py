"""Support sets: who may say what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from corpora import WORDS, split, vocabulary
from trellis.corpus import Corpus
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.support import SUPPORTS

CORPUS = Corpus(vocabulary(), {"train": split()}, "made up")


def support(**fields) -> torch.Tensor:
    made = SUPPORTS[fields["emission"]](CORPUS, replace(HMMConfig(), **fields), 0)
    assert made is not None
    return made.support if isinstance(made, Partition) else made


def test_brown_classes_partition_the_states() -> None:
    made = support(emission="brown", states=12, classes=3)
    assert made.shape == (len(WORDS), 4)
    assert sorted(made.unique().tolist()) == list(range(12))
    for one in made:
        for other in made:
            shared = len(set(one.tolist()) & set(other.tolist()))
            assert shared in (0, 4)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_words_alone_in_their_class(count: int) -> None:
    made = SUPPORTS["brown"](CORPUS, HMMConfig(emission="brown", states=12, classes=4, singletons=count), 0)
    assert isinstance(made, Partition)
    words_of = made.word_class.bincount()
    frequent = sorted(range(len(WORDS)), key=lambda word: -CORPUS.vocab.counts[word])
    expected = list(dict.fromkeys([CORPUS.vocab.eos, *frequent]))[:count]
    assert all(words_of[made.word_class[word]] == 1 for word in expected)
    with pytest.raises(TrellisError, match=r"must be smaller than model\.classes"):
        support(emission="brown", states=12, classes=4, singletons=4)


def test_cloned_states_belong_to_one_word() -> None:
    made = support(emission="cloned", states=2 * len(WORDS))
    assert sorted(made.flatten().tolist()) == list(range(2 * len(WORDS)))


def test_uniform_sets_have_no_state_twice_and_repeat_with_the_seed() -> None:
    made = support(emission="uniform", states=9, states_per_word=5)
    assert all(len(set(row.tolist())) == 5 for row in made)
    assert torch.equal(made, support(emission="uniform", states=9, states_per_word=5))


def test_uniform_sets_leave_no_state_without_words() -> None:
    made = support(emission="uniform", states=20, states_per_word=3)
    assert sorted(made.unique().tolist()) == list(range(20))
    assert all(len(set(row.tolist())) == 3 for row in made)


def test_uneven_classes_have_states_by_their_counts() -> None:
    made = SUPPORTS["brown"](CORPUS, HMMConfig(emission="brown", states=13, classes=3, class_sizes="log"), 0)
    assert isinstance(made, Partition)
    assert sum(made.counts) == 13
    assert len(set(made.counts)) > 1


def test_full_is_no_support() -> None:
    assert SUPPORTS["full"](CORPUS, HMMConfig(), 0) is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"emission": "brown", "states": 10, "classes": 3}, "try model.states = 9"),
        ({"emission": "cloned", "states": 3}, "divided among 7 words"),
        ({"emission": "uniform", "states": 4, "states_per_word": 5}, "there are only 4 states"),
        ({"emission": "brown", "states": 4, "classes": 0}, "must be at least 1"),
        ({"emission": "brown", "states": 4, "classes": 2, "class_sizes": "lgo"}, "did you mean 'log'"),
        (
            {"emission": "brown", "states": 4, "classes": 9, "class_sizes": "log"},
            "there are only 4 states",
        ),
        ({"emission": "uniform", "states": 40, "states_per_word": 3}, "at most 21"),
    ],
)
def test_what_does_not_fit_is_told(fields, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        support(**fields)
