"""The assembled HMM: text in, exact answers out."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import torch

from corpora import WORDS, hmm, vocabulary
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import TableParams
from trellis.types import Batch

EXACT = 1e-10
SUMMING = 1e-12  # relative difference between two orders of a float64 sum


def enumerate_log_prob(model: HMM, tokens: list[int], start: torch.Tensor | None = None) -> float:
    """log p(tokens) by summing over every path; -1 is a missing token."""
    first, transition, emission = model.parts()
    first = first if start is None else start
    matrix, table, total = transition.dense(), emission.dense().exp(), 0.0
    for path in itertools.product(range(model.num_states), repeat=len(tokens)):
        p = float(first[path[0]])
        for before, after in itertools.pairwise(path):
            p *= float(matrix[before, after])
        for state, token in zip(path, tokens, strict=True):
            p *= 1.0 if token < 0 else float(table[token, state])
        total += p
    return math.log(total)


def test_log_prob_counts_the_end_of_each_line() -> None:
    model = hmm()
    expected = enumerate_log_prob(model, [1, 2, 4, 0]) + enumerate_log_prob(model, [5, 0])
    assert model.log_prob("the cat sees\na") == pytest.approx(expected, abs=EXACT)


@torch.no_grad()
def test_tokens_in_single_precision_are_summed_in_double() -> None:
    model = HMM.new(vocabulary(), 3).eval()
    text = " ".join(np.random.default_rng(0).choice(WORDS[1:], 2000))
    tokens = model.encode_line(text, eos=True)
    expected = float(model.score(tokens, model.start(1))[0].double().sum())
    batch = Batch(tokens, torch.tensor([tokens.shape[1]]), torch.tensor([True]))
    assert model.log_prob(text) == pytest.approx(expected, rel=SUMMING)
    assert float(model.log_likelihood(batch, None)[0]) == pytest.approx(expected, rel=SUMMING)


def test_a_streamed_model_begins_a_sentence_after_an_eos() -> None:
    model = hmm(carry=True)
    ends = model.parts().emission.dense()[0].exp()
    after = model.occupancy() * ends / (model.occupancy() * ends).sum()
    expected = enumerate_log_prob(model, [1, 2, 0], after @ model.parts().transition.dense())
    assert model.log_prob("the cat") == pytest.approx(expected, abs=EXACT)


def test_predictions_sum_to_one_and_agree_with_log_prob() -> None:
    model = hmm()
    ranked = dict(model.predict("the cat", n=len(WORDS)))
    assert sum(ranked.values()) == pytest.approx(1.0, abs=EXACT)
    expected = enumerate_log_prob(model, [1, 2, 4]) - enumerate_log_prob(model, [1, 2])
    assert math.log(ranked["sees"]) == pytest.approx(expected, abs=EXACT)
    assert list(ranked.values()) == sorted(ranked.values(), reverse=True)


def test_infilling_two_gaps_by_enumeration() -> None:
    model = hmm()
    answer = model.infill("the ___ sees ___", n=len(WORDS), samples=5, seed=1)
    words = range(1, len(WORDS))  # a missing word is never <eos>
    joint = {(v, w): math.exp(enumerate_log_prob(model, [1, v, 4, w])) for v in words for w in words}
    for gap, position in zip(answer.gaps, (0, 1), strict=True):
        for word, probability in gap:
            of_word = sum(p for pair, p in joint.items() if WORDS[pair[position]] == word)
            assert probability == pytest.approx(of_word / sum(joint.values()), abs=EXACT)
    assert all(line.startswith("the ") and line.split()[2] == "sees" for line in [answer.best, *answer.samples])
    assert len(answer.samples) == 5


def test_whole_sentence_infilling_knows_its_end() -> None:
    model = hmm()
    ranked = dict(model.infill("the ___", n=len(WORDS), complete=True).gaps[0])
    joint = {w: math.exp(enumerate_log_prob(model, [1, i, 0])) for i, w in enumerate(WORDS) if i}
    for word, p in joint.items():
        assert ranked[word] == pytest.approx(p / sum(joint.values()), abs=EXACT)


def test_scoring_in_windows_equals_scoring_at_once() -> None:
    model = hmm(states=5)
    tokens = torch.randint(0, len(WORDS), (3, 12), generator=torch.Generator().manual_seed(0))
    whole, _ = model.score(tokens, model.start(3))
    state, parts = model.start(3), []
    for window in tokens.split(5, dim=1):
        log_probs, state = model.score(window, state)
        parts.append(log_probs)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=EXACT)
    torch.testing.assert_close(model.forecast(state).exp().sum(-1), torch.ones(3, dtype=torch.float64))


def test_reset_begins_chosen_sequences_anew_and_narrows() -> None:
    model = hmm()
    _, state = model.score(torch.tensor([[1, 2], [3, 4], [5, 1]]), model.start(3))
    state = model.reset(state, torch.tensor([True, False]))
    again, _ = model.score(torch.tensor([[1], [1]]), state)
    fresh, _ = model.score(torch.tensor([[1]]), model.start(1))
    assert float(again[0, 0]) == pytest.approx(float(fresh[0, 0]), abs=EXACT)
    assert float(again[1, 0]) != pytest.approx(float(fresh[0, 0]), abs=1e-6)


@pytest.mark.parametrize("started", [False, True])
def test_a_sequence_without_tokens_keeps_its_state(started: bool) -> None:
    model = hmm()
    state = model.start(2)
    if started:
        _, state = model.score(torch.tensor([[1, 2], [3, 4]]), state)
    expected, _ = model.score(torch.tensor([[5], [5]]), state)
    _, later = model.score(torch.tensor([[1], [1]]), state, torch.tensor([0, 1]))
    again, _ = model.score(torch.tensor([[5], [5]]), later)
    assert float(again[0, 0]) == pytest.approx(float(expected[0, 0]), abs=EXACT)
    assert float(again[1, 0]) != pytest.approx(float(expected[1, 0]), abs=1e-6)


def test_what_is_remembered_follows_the_parameters() -> None:
    model = hmm()
    with torch.no_grad():
        before, share = model.parts().start.clone(), model.occupancy()
        assert model.parts().start is model.parts().start
        model.params.start_logits[0] += 1.0
        assert not torch.equal(model.parts().start, before)
        assert not torch.equal(model.occupancy(), share)


def test_samples_follow_the_model() -> None:
    """First words of many samples against the exact distribution, by chi-square."""
    model, n = hmm(), 4000
    first = [line.split()[0] if line else "<eos>" for line in model.sample(n, max_tokens=1, seed=3)]
    expected = dict(model.predict("", n=len(WORDS)))
    statistic = sum((first.count(w) - n * p) ** 2 / (n * p) for w, p in expected.items())
    assert statistic < 27.9  # chi-square, 6 degrees of freedom, p = 1e-4
    assert model.sample(3, seed=5) == model.sample(3, seed=5)
    with pytest.raises(TrellisError, match="number of tokens is 0"):
        model.sample(1, max_tokens=0)


def test_posterior_and_path_have_the_models_states() -> None:
    model = hmm()
    tokens = model.encode_line("the cat sees a dog")
    torch.testing.assert_close(model.smooth(tokens).probs.sum(-1), torch.ones(1, 5, dtype=torch.float64))
    filtered = model.filter(tokens).probs
    torch.testing.assert_close(filtered[:, -1], model.smooth(tokens).probs[:, -1])
    path, score = model.best_path(tokens)
    assert path.shape == (1, 5)
    assert float(score) < enumerate_log_prob(model, tokens[0].tolist())


def test_support_restricts_what_a_state_says() -> None:
    support = torch.tensor([[i % 3, (i + 1) % 3] for i in range(len(WORDS))])
    model = HMM(vocabulary(), TableParams(3, len(WORDS), support)).to(torch.float64).requires_grad_(False)
    torch.testing.assert_close(model.parts().emission.dense().exp().sum(0), torch.ones(3, dtype=torch.float64))
    expected = enumerate_log_prob(model, [1, -1, 4])
    joint, _ = model.score(torch.tensor([[1, -1, 4]]), model.start(1))
    assert float(joint.sum()) == pytest.approx(expected, abs=EXACT)
    assert len(model.infill("the ___ sees").gaps) == 1


@pytest.mark.parametrize("first", [1, -1])
def test_a_sparse_stream_in_windows_equals_the_whole(first: int) -> None:
    support = torch.tensor([[i % 3, (i + 1) % 3] for i in range(len(WORDS))])
    model = HMM.new(vocabulary(), 3, carry=True, support=support).to(torch.float64).requires_grad_(False)
    tokens = torch.tensor([[1, 2, 4, 0, 5, 3, 6], [3, 3, 0, 1, first, 2, 0]])
    whole, _ = model.score(tokens, model.start(2))
    state, parts = model.start(2), []
    for window in tokens.split(4, dim=1):
        log_probs, state = model.score(window, state)
        parts.append(log_probs)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=EXACT)
    assert float(whole[1].sum()) == pytest.approx(enumerate_log_prob(model, tokens[1].tolist()), abs=EXACT)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.infill("the cat"), "has no gap"),
        (lambda m: m.infill("the ___{1,3}"), r"one missing word; for ___\{1,3\}, use `trellis generate --template`"),
        (lambda m: m.infill("a ___\nb ___"), "2 lines"),
        (lambda m: HMM.new(m.vocab, 0), "is auto, which only"),
    ],
)
def test_bad_input_is_explained(call, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        call(hmm())


def test_a_model_that_has_answered_can_be_pickled() -> None:
    model = hmm()
    expected = model.log_prob("the cat")
    assert pickle.loads(pickle.dumps(model)).log_prob("the cat") == expected


@torch.no_grad()
def test_parts_are_those_of_their_moment() -> None:
    model = hmm()
    parts, before = model.parts(), model.params.parts().start.clone()
    model.params.start_logits[0] += 5
    assert parts.start.equal(before)
    assert not model.parts().start.equal(before)
