"""Words with tags: potentials and counts of both, against the tables written out."""

from __future__ import annotations

import pytest
import torch

from corpora import STATES, SUPPORTS, WORDS
from taggers import TAGS, symbol
from trellis.emissions import Product
from trellis.families.hmm.parameters import TableParams
from trellis.testing.close import assert_close
from trellis.testing.problems import distributions

EVERY = pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)


def product(support) -> Product:
    words = TableParams(STATES, len(WORDS), support).double().parts().emission
    tags = distributions(torch.Generator().manual_seed(1), STATES, len(TAGS), zeros=0.2).T.log()
    return Product(words, tags)


@EVERY
def test_potentials_of_words_and_tags_add(support) -> None:
    emission = product(support)
    symbols = torch.tensor([[symbol(w, y) for w in range(len(WORDS))] for y in (None, *range(len(TAGS)))])
    actual = emission.potentials(symbols).widen(STATES).gather()
    assert_close(actual[0], emission.dense())
    for tag in range(len(TAGS)):
        assert_close(actual[1 + tag], emission.dense() + emission.tags[tag])


@EVERY
def test_a_missing_symbol_is_any_word_with_any_tag(support) -> None:
    symbols = torch.tensor([[-1, symbol(2, 1), -1]])
    actual = product(support).potentials(symbols).widen(STATES).gather()
    assert_close(actual[0, [0, 2]], torch.zeros(2, STATES, dtype=torch.float64))


@EVERY
def test_the_best_tag_of_each_state(support) -> None:
    emission, words = product(support), torch.tensor([[1, 4, 6]])
    potentials, best = emission.best_tags(words, slice(1, None))
    assert_close(potentials.widen(STATES).gather()[0], emission.dense()[words[0]] + emission.tags[1:].max(0).values)
    assert_close(best, emission.tags[1:].argmax(0) + 1)


@EVERY
def test_visits_are_collected_by_word_and_by_tag(support) -> None:
    emission = product(support)
    pairs = [(1, 2), (1, None), (3, 2), (0, 0), (1, 2)]
    symbols = torch.tensor([[symbol(*pair) for pair in pairs]])
    visits = torch.rand(len(pairs), emission.table.shape[1], dtype=torch.float64)
    by_word, by_tag = emission.split_statistics(emission.statistics(symbols, visits))
    assert_close(by_word[1], visits[0] + visits[1] + visits[4])
    assert_close(by_word.sum(), visits.sum())
    states = torch.arange(STATES).expand(len(WORDS), -1) if emission.support is None else emission.support
    expected = torch.zeros(len(TAGS), STATES, dtype=torch.float64)
    for (word, tag), visit in zip(pairs, visits, strict=True):
        if tag is not None:
            expected[tag].index_add_(0, states[word], visit)
    assert_close(by_tag, expected)
