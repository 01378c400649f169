"""Sentences of a grammar that satisfy a constraint, against the enumeration of all derivations, in float64."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

import trellis
from pcfg_oracle import Oracle, random_grammar
from running import run
from trellis.constraints import (
    Constraint,
    anything,
    begins,
    contains,
    ends,
    exactly,
    length,
    one_of,
    regex,
    template,
    tokens,
)
from trellis.corpus import Vocabulary
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.pcfg import constrained
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.model import PCFG
from trellis.families.pcfg.parameters import GrammarParams, Kept, Logits, Size
from trellis.testing.families import SENTENCES

EXACT = 1e-10
FLOAT = 1e-4  # of log-probabilities in float32
DRAWS, LEAST = 4000, 1e-3  # samples of a chi-square test, and its smallest p-value
SMALL: dict[str, Any] = {"nonterminals": 3, "preterminals": 4, "epochs": 2, "tokenizer": "whitespace", "device": "cpu"}
HALVES = Partition(torch.tensor([0, 1, 0, 1]), (2, 2))
LETTERS = {3: "ab", 4: "abc"}
GRAMMARS: dict[str, tuple[int, Any]] = {  # the most words, and the arguments of `random_grammar`
    "simple": (4, (2, 2, None, 3)),
    "rank": (4, (2, 2, 3, 3)),
    "infinite": (4, (2, 2, None, 3, 7, 2.0)),  # some trees are infinite
    "brown": (3, (2, 4, None, 4, 0, 1.0, HALVES)),
    "brown-rank": (3, (2, 4, 2, 4, 0, 1.0, HALVES)),
}
Holds = Callable[[str], bool]
CONSTRAINTS: dict[str, tuple[Constraint, Holds]] = {
    "anything": (anything(), lambda text: True),
    "contains": (contains("a"), lambda text: "a" in text),
    "not": (~contains("a b"), lambda text: "a b" not in text),
    "and": (contains("a") & ends("b"), lambda text: "a" in text and text.endswith("b")),
    "or": (begins("b b") | length(0, 0), lambda text: text.startswith("b b") or not text),
    "twice": (contains("a", 2), lambda text: text.count("a") >= 2),
    "length": (length(1, 2), lambda text: 1 <= len(text.split()) <= 2),
    "template": (template("a ___{0,2} b"), lambda text: re.fullmatch(r"a( \w){0,2} b", text) is not None),
    "regex": (regex("b( a| b)*|"), lambda text: re.fullmatch("(b( [ab])*)?", text) is not None),
    "tokens": (tokens("(a | b b)*"), lambda text: re.fullmatch("(a|b b)( (a|b b))*|", text) is not None),
    "one of": (one_of(["a", "b a", "a b b", ""]), lambda text: text in {"a", "b a", "a b b", ""}),
    "empty": (exactly(""), lambda text: not text),
}


class Given(GrammarParams):
    """The parameters of a grammar that is given."""

    def __init__(self, grammar: Grammar) -> None:
        nonterminals, rank = grammar.nonterminals, 0 if grammar.ranks is None else grammar.rank
        emission = grammar.emission
        super().__init__(Size(emission.num_symbols, 0, nonterminals, grammar.preterminals, rank), emission.partition)
        self.given, self.root = grammar, torch.nn.Parameter(grammar.root)

    def grammar(self, kept: Kept | None = None) -> Grammar:
        return self.given

    def logits(self, kept: Kept | None = None) -> Logits:
        raise NotImplementedError

    def shift_word_logits(self, scores: torch.Tensor) -> None:
        raise NotImplementedError


def model_of(grammar: Grammar) -> PCFG:
    words = ["<eos>", *LETTERS[grammar.emission.num_symbols]]
    return PCFG(Vocabulary(words, [1] * len(words)), Given(grammar)).eval()


class Enumerated:
    """A grammar and the probabilities of all its sentences of up to `most` words."""

    def __init__(self, most: int, arguments: Any) -> None:
        grammar = random_grammar(*arguments)
        self.most, self.model, self.mass = most, model_of(grammar), float(grammar.finite.total)
        oracle, letters = Oracle(grammar), ["", *LETTERS[arguments[3]]]
        every = (one for n in range(most + 1) for one in product(range(1, len(letters)), repeat=n))
        self.probs = {" ".join(letters[i] for i in one): oracle.prob(one) / self.mass for one in every}

    def satisfying(self, holds: Holds, prompt: str = "", least: int = 0) -> Counter[str]:
        return Counter(
            {
                text: p
                for text, p in self.probs.items()
                if holds(text) and f"{text} ".startswith(f"{prompt} ".lstrip()) and len(text.split()) >= least
            }
        )

    def beginning(self, prompt: str) -> float:
        """p(the sentence begins with the prompt), which other tests compare with sums over sentences."""
        return math.exp(self.model.token_log_probs(prompt)[: len(prompt.split())].sum())


@pytest.fixture(scope="module", params=GRAMMARS)
def enumerated(request: pytest.FixtureRequest) -> Enumerated:
    return Enumerated(*GRAMMARS[request.param])


@pytest.fixture(scope="module")
def trained() -> Any:
    return trellis.train(SENTENCES, family="pcfg", **SMALL, dim=8).model


def close(found: Any, expected: Any, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_the_grammars_are_of_both_kinds() -> None:
    masses = {name: float(random_grammar(*given).finite.total) for name, (_, given) in GRAMMARS.items()}
    assert masses["infinite"] < 0.9
    assert 1.0 in masses.values()


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("prompt", ["", "a", "b b"])
@pytest.mark.parametrize("least", [0, 2])
def test_probabilities_are_sums_over_sentences(name: str, prompt: str, least: int, enumerated: Enumerated) -> None:
    constraint, holds = CONSTRAINTS[name]
    found = enumerated.model.constrain(constraint, least, enumerated.most)
    expected, begun = enumerated.satisfying(holds, prompt, least), enumerated.beginning(prompt)
    total = math.fsum(expected.values())
    close(math.exp(found.log_prob(prompt)), total / begun)
    shorter = math.fsum(enumerated.satisfying(lambda text: True, prompt).values())
    close(math.exp(found.log_prob_longer(prompt)), 1 - shorter / begun)
    if not total:
        with pytest.raises(TrellisError, match="satisfies the constraint under the model"):
            found.sample(prompt=prompt)
        return
    lengths = np.zeros(enumerated.most + 1)
    following = Counter[str]()
    for text, p in expected.items():
        lengths[len(text.split())] += p / total
        following[[*text.split(), "<eos>"][len(prompt.split())]] += p / total
    close(found.length_probs(prompt), lengths)
    close(found.expected_length(prompt), lengths @ np.arange(len(lengths)))
    predicted = dict(found.predict(prompt, len(enumerated.model.vocab)))
    close([predicted.get(word, 0.0) for word in enumerated.model.vocab.words],
          [following[word] for word in enumerated.model.vocab.words])  # fmt: skip
    for text, log_prob, log_prob_given in found.samples(5, prompt):
        close(log_prob, math.log(expected[text]))
        close(log_prob_given, math.log(expected[text] / total))


@pytest.mark.parametrize("name", ["anything", "not", "template", "one of"])
@pytest.mark.parametrize("prompt", ["", "a"])
def test_samples_follow_the_distribution(name: str, prompt: str, enumerated: Enumerated) -> None:
    constraint, holds = CONSTRAINTS[name]
    expected = enumerated.satisfying(holds, prompt)
    drawn = Counter(enumerated.model.constrain(constraint, most=enumerated.most).sample(DRAWS, prompt))
    assert drawn.keys() <= expected.keys()
    total = math.fsum(expected.values())
    common = [text for text, p in expected.items() if p / total * DRAWS >= 5]
    wanted, seen = [expected[text] / total * DRAWS for text in common], [drawn[text] for text in common]
    if (rest := DRAWS - sum(wanted)) > 1:
        wanted, seen = [*wanted, rest], [*seen, DRAWS - sum(seen)]
    assert chisquare(seen, np.array(wanted) * sum(seen) / sum(wanted)).pvalue > LEAST


@pytest.mark.parametrize("constraint", [contains("a b"), regex("a.*b"), tokens("(a b b)* a?")])
@pytest.mark.parametrize("prompt", ["", "b a"])
def test_a_sentence_satisfies_the_constraint_or_not_or_is_longer(
    constraint: Constraint, prompt: str, enumerated: Enumerated
) -> None:
    with_, without = (enumerated.model.constrain(one, most=30) for one in (constraint, ~constraint))
    logs = with_.log_prob(prompt), without.log_prob(prompt), with_.log_prob_longer(prompt)
    close(np.exp(logs).sum(), 1.0)


def test_under_no_constraint_sentences_are_those_of_the_model() -> None:
    """Numbers of words and first words, of sentences of up to 8 words."""
    model, most = model_of(random_grammar(*GRAMMARS["infinite"][1])), 8
    found = model.constrain(anything(), most=most)
    free = [text for text in model.sample(DRAWS, seed=1) if len(text.split()) <= most]
    close(len(free) / DRAWS, found.prob, 4 * math.sqrt(found.prob * found.prob_longer / DRAWS))

    def kinds(texts: list[str]) -> Counter[tuple[int, str]]:
        return Counter((len(text.split()), text[:1]) for text in texts)

    one, other = kinds(free), kinds(found.sample(DRAWS))
    both = [[one[kind], other[kind]] for kind in one | other if one[kind] + other[kind] >= 10]
    assert len(both) > 5
    assert chi2_contingency(both).pvalue > LEAST


def test_improbable_sentences_do_not_underflow() -> None:
    model, text = model_of(random_grammar(2, 2, None, 3, 1, 12.0)), " ".join("abbab" * 24)
    log_prob = model.log_prob(text)
    assert -math.inf < log_prob < -400
    found = model.constrain(exactly(text), most=120)
    close(found.log_prob(), log_prob)
    assert found.sample(2) == [text] * 2
    assert found.predict(" ".join("abb"))[0] == ("a", pytest.approx(1.0))
    close(found.length_probs(), np.arange(121) == 120)


def test_the_first_samples_do_not_depend_on_their_number(trained: Any) -> None:
    found = trained.constrain(contains("dog"), most=12)
    assert found.sample(3, seed=2) == found.sample(8, seed=2)[:3] != found.sample(3, seed=3)


def test_sentences_of_the_trained_grammar(trained: Any) -> None:
    """In float32: the model's own scores, and predictions without a constraint."""
    with_, without = (trained.constrain(one, most=40) for one in (contains("cat"), ~contains("cat")))
    close(with_.prob + without.prob + with_.prob_longer, 1.0)
    close(trained.constrain(exactly("the cat runs")).log_prob(), trained.log_prob("the cat runs"), FLOAT)
    free, forced = dict(trained.predict("the")), dict(trained.constrain(anything(), most=200).predict("the"))
    close([forced[word] for word in free], [*free.values()], FLOAT)
    for text in with_.sample(20, "the dog"):
        assert text.startswith("the dog")
        assert "cat" in text.split()


def test_what_a_grammar_under_a_constraint_refuses(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrellisError, match="whole sentences"):
        trained.constrain(anything(), complete=False)
    with pytest.raises(TrellisError, match="No sentence satisfies the constraint"):
        trained.constrain(contains("cat") & ~contains("cat"))
    with pytest.raises(TrellisError, match="has 3 words, more than the 2"):
        trained.constrain(anything(), most=2).sample(prompt="the cat runs")
    short = trained.constrain(anything(), most=2)
    assert (short.log_prob("the cat runs"), short.log_prob_longer("the cat runs")) == (-math.inf, 0.0)
    for verb in ("best", "viterbi"):
        with pytest.raises(TrellisError, match=rf"{verb}\(\) is for HMMs"):
            getattr(trained.constrain(anything()), verb)()
    for limit in ("LARGEST", "WORK"):
        with monkeypatch.context() as patch:
            patch.setattr(constrained, limit, 20)
            with pytest.raises(TrellisError, match="larger chart"):
                trained.constrain(anything(), most=20).log_prob()


def test_the_command_generate(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    trained.save(tmp_path / "run")
    given = "generate", tmp_path / "run", "--contains", "cat", "--not", "dog", "--words", "2..9"
    with caplog.at_level("INFO"):
        assert run(*given, "-n", 3, "--log-probs") == 0
    out = capsys.readouterr().out
    found = trained.constrain(contains("cat") & ~contains("dog"), 2, 9)
    sampled = found.samples(3)
    assert out.splitlines() == [f"{one.log_prob:.4f}\t{one.text}" for one in sampled]
    shown = f"p(constraint) = {found.prob:.6g} for 2 to 9 words (expected: {found.expected_length():.1f})"
    assert [record.message for record in caplog.records] == [f"{shown}; p(more than 9 words) = {found.prob_longer:.3g}"]
    assert run(*given, "--json", "--prompt", "the") == 0
    data = json.loads(capsys.readouterr().out)
    close(data["log_prob"], found.log_prob("the"), FLOAT)
    close(data["log_prob_longer"], found.log_prob_longer("the"), FLOAT)
    assert data["sentences"][0]["text"].startswith("the ")
    for more, message in (
        (["--best"], "best() is for HMMs"),
        (["--contains", "dog"], "No sentence satisfies the constraint"),
        (["--prompt", "a dog"], "No sentence of 2 to 9 words that begins with 'a dog' satisfies the constraint"),
    ):
        assert run(*given, *more) == 2
        out, err = capsys.readouterr()
        assert (out, err.strip().count("\n")) == ("", 0)
        assert message in err
