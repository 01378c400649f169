"""Gold trees treated as PTB's text, and their F1."""

from __future__ import annotations

import numpy as np
import pytest

import trellis
from experiments.pcfg.__main__ import perplexity
from experiments.pcfg.paper import halves, mean_f1
from experiments.pcfg.treebank import BASELINES, Gold, f1, parse, right_branching, without

LINE = "( (S (NP-SBJ (DT The) (NN cat)) (, ,) (VP (VBD saw) (NP (CD 9.8) (NN %)) (-NONE- *T*-1)) (. .)))"


def test_a_tree_without_punctuation_and_traces() -> None:
    gold = parse(LINE)
    assert gold.words == ("the", "cat", "saw", "N", "N")
    assert gold.spans == {(0, 5), (0, 2), (2, 5), (3, 5)}


def test_words_are_those_of_the_text() -> None:
    """Numbers with hyphens are N, but not words that begin with a number; a slash keeps its backslash."""
    line = r"( (NP (CD 1989-90) (JJ 30-day) (NN property\/casualty) (CD 3\/4) (NN %)))"
    assert parse(line).words == ("N", "30-day", r"property\/casualty", "N", "N")


def test_f1_ignores_the_whole_sentence() -> None:
    gold = parse(LINE)
    assert f1(gold.spans, gold) == 1
    assert f1([(0, 5), (0, 2), (0, 3), (0, 4)], gold) == 2 * 1 / (3 + 3)
    assert f1([(0, 2)], Gold(("a", "b"), frozenset({(0, 2)}))) == 1


def test_baselines_are_binary_trees() -> None:
    for make in BASELINES.values():
        spans = make(7, np.random.default_rng(0))
        assert len({*spans}) == 6
        assert all(b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d) for a, b in spans for c, d in spans)


def test_sentences_with_trees_are_left_out() -> None:
    corpus = trellis.read_corpus(["the cat runs", "a dog runs"] * 20, tokenizer="whitespace")
    left = without(corpus, [Gold(("the", "cat", "runs"), frozenset())])
    rows = np.split(left["train"].tokens, left["train"].sentences[1:-1])
    assert {" ".join(corpus.vocab.decode(row.tolist())) for row in rows} == {"a dog runs <eos>"}
    assert {name: len(part) for name, part in halves([parse(LINE)] * 5).items()} == {"choosing": 2, "final": 3}


def test_figures_of_a_grammar() -> None:
    text = ["the cat saw a dog", "a dog runs"] * 20
    corpus = trellis.read_corpus(text, tokenizer="whitespace")
    sizes = {"nonterminals": 3, "preterminals": 4, "dim": 8, "epochs": 1, "device": "cpu"}
    model = trellis.train(text, family="pcfg", tokenizer="whitespace", **sizes).model
    rows = np.split(corpus["train"].tokens, corpus["train"].sentences[1:-1])
    total = sum(float(model.log_prob(" ".join(corpus.vocab.decode(row[:-1].tolist())))) for row in rows)
    assert perplexity(model, corpus["train"]) == pytest.approx(np.exp(-total / corpus["train"].tokens.size), rel=1e-4)
    gold = [Gold(("the", "cat"), frozenset({(0, 2)})), Gold(("a", "dog", "runs"), frozenset({(0, 3)}))]
    assert mean_f1(model, gold) == 50


def test_f1_of_a_grammar_is_that_of_its_trees() -> None:
    text = ["the cat saw a dog", "a dog runs", "a cat saw the dog and a dog"] * 20
    sizes = {"nonterminals": 3, "preterminals": 4, "dim": 8, "epochs": 1, "device": "cpu"}
    model = trellis.train(text, family="pcfg", tokenizer="whitespace", **sizes).model
    words = tuple(text[2].split())
    gold = Gold(words, frozenset(right_branching(len(words), np.random.default_rng(0))))
    expected = f1(model.parse(" ".join(words)).brackets(), gold)
    assert mean_f1(model, [gold]) == pytest.approx(100 * expected)
