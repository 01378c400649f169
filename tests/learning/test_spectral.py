"""Spectral learning: exact from exact counts, better with more text, and a good beginning for EM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from experiments.kernel_hmm.spectral_hmm import error, fit, random_hmm, sampled
from trellis.config import TrainConfig
from trellis.corpus import Vocabulary
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.learning.gradient import GradientLearner
from trellis.learning.spectral import (
    SMALLEST,
    SMOOTHING,
    Moments,
    ObservableOperators,
    Probabilities,
    by_anchors,
    by_cooccurrence,
    by_eigenvectors,
    distributions,
    improved,
    initial,
    misfit,
    moments,
)
from trellis.testing.oracle import sentences
from trellis.types import Batch

STATES, SYMBOLS = 3, 6
EXACT = 1e-6
MATCHED = 2e-3
HALF = 0.5


def stationary(model: Probabilities) -> Probabilities:
    return model._replace(start=np.linalg.matrix_power(model.transition, 4096)[0])


def small(seed: int = 0) -> Probabilities:
    return stationary(random_hmm(STATES, SYMBOLS, seed))


def exact_moments(model: Probabilities) -> Moments:
    """Without sampling."""
    joint = sentences(model.start, np.stack([model.transition] * 2), model.emission)  # x_1, x_2, x_3
    triples = np.array(list(np.ndindex(joint.shape))).T
    return Moments(joint.sum((1, 2)), sparse.csr_matrix(joint.sum(2).T), triples[::-1], joint.ravel())


def test_moments_count_neighbours() -> None:
    found = moments(np.array([[0, 1, 2, 1], [1, 1, 2, 0]]), 3)
    np.testing.assert_allclose(found.single, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(found.pairs.toarray() * 6, [[0, 0, 1], [1, 1, 1], [0, 2, 0]])
    counted = {tuple(triple): share * 4 for triple, share in zip(found.triples.T.tolist(), found.shares, strict=True)}
    assert counted == pytest.approx({(2, 1, 0): 1, (1, 2, 1): 1, (2, 1, 1): 1, (0, 2, 1): 1})


def test_moments_of_large_vocabularies_in_short_integers() -> None:
    text = np.random.default_rng(0).integers(0, 10_000, (20, 30))
    long, short = moments(text, 10_000), moments(text.astype(np.int32), 10_000)
    np.testing.assert_array_equal(long.triples, short.triples)
    assert short.triples.min() >= 0
    assert short.triples.max() < 10_000


@pytest.mark.parametrize("seed", range(2))
def test_pairs_alone_are_matched(seed: int) -> None:
    given = exact_moments(small(seed))
    found = by_cooccurrence(given, STATES, penalty=0.0, starts=4, steps=1500)
    pairs = found.emission.T @ (found.start[:, None] * found.transition) @ found.emission
    np.testing.assert_allclose(pairs, given.pairs.toarray().T, atol=MATCHED)
    np.testing.assert_allclose(found.start @ found.transition, found.start, atol=EXACT)


def test_gradients_can_begin_with_an_estimate() -> None:
    text = sampled(small(), 40, 50, 1)
    vocab = Vocabulary(["<eos>", "<unk>", *"abcd"], [1] * SYMBOLS)
    hmm = HMM.new(vocab, STATES).double()
    hmm.params.set_probabilities(*by_cooccurrence(moments(text, SYMBOLS), STATES).smoothed(SMOOTHING).tensors())
    learner = GradientLearner(hmm, TrainConfig(learner="gradient", lr=0.01), 30)
    everything = Batch(torch.from_numpy(text), torch.full((40,), 50), torch.ones(40, dtype=torch.bool), True, True)
    reached = [float(learner.step(everything).log_likelihood) for _ in range(30)]
    assert (
        reached[-1] > reached[0] > float(HMM.new(vocab, STATES).double().log_likelihood(everything, None)[0].detach())
    )


@pytest.mark.parametrize("seed", range(3))
def test_exact_counts_give_exact_probabilities_of_sentences(seed: int) -> None:
    model = small(seed)
    operators = ObservableOperators(exact_moments(model), STATES)
    truth = sentences(model.start, np.stack([model.transition] * 3), model.emission)
    for sentence in np.random.default_rng(seed).integers(SYMBOLS, size=(20, 4)):
        scores = operators.score(sentence)
        assert scores.negative == 0
        assert np.exp(scores.log_probs.sum()) == pytest.approx(truth[tuple(sentence)], rel=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_exact_counts_give_the_model_itself(seed: int) -> None:
    model = small(seed)
    assert max(error(by_eigenvectors(exact_moments(model), STATES), model)) < EXACT


def test_anchors() -> None:
    model = small()
    emission = model.emission.copy()
    emission[:, :STATES] = np.eye(STATES) * 0.3  # three words of one state each
    model = model._replace(emission=distributions(emission))
    assert max(error(by_anchors(exact_moments(model), STATES), model)) < EXACT


def test_error_falls_with_the_length_of_the_text() -> None:
    model = random_hmm(5, 20, 1)
    errors, nats = [], []
    held_out = sampled(model, 1, 1000, 1)[0]
    for sequences in (10, 400):
        found = moments(sampled(model, sequences, 1000, 0), 20)
        errors.append(error(by_eigenvectors(found, 5), model))
        nats.append(-ObservableOperators(found, 5).score(held_out).log_probs.mean())
    assert errors[1].emission < HALF * errors[0].emission
    assert errors[1].transition < HALF * errors[0].transition
    assert nats[1] < nats[0]


def test_em_begun_there_is_as_good_as_the_best_of_ten_random_starts() -> None:
    text = sampled(random_hmm(5, 20, 1), 60, 1000, 1)
    begun = fit(text, initial(moments(text, 20), 5), 40)
    assert begun >= max(fit(text, random_hmm(5, 20, seed, 1.0), 40) for seed in range(100, 110))


def test_a_round_on_triples_is_em_on_texts_of_three_symbols() -> None:
    """Against the expected counts by enumeration of all paths."""
    text = sampled(small(), 4, 50, 0)
    given, model = moments(text, SYMBOLS), small(1)
    begin = model.smoothed(SMOOTHING)
    starts, moves, seen = np.zeros(STATES), np.zeros((STATES, STATES)), np.zeros((STATES, SYMBOLS))
    for (late, here, early), share in zip(given.triples.T, given.shares, strict=True):
        path = (
            (begin.start * begin.emission[:, early])[:, None, None]
            * (begin.transition * begin.emission[:, here])[:, :, None]
            * (begin.transition * begin.emission[:, late])[None]
        )
        path *= share / path.sum()
        starts += path.sum((1, 2))
        moves += path.sum(2) + path.sum(0)
        for axes, symbol in (((1, 2), early), ((0, 2), here), ((0, 1), late)):
            seen[:, symbol] += path.sum(axes)
    found = improved(given, model, 1)
    np.testing.assert_allclose(found.start, starts, atol=EXACT)
    np.testing.assert_allclose(found.transition, distributions(moves), atol=EXACT)
    np.testing.assert_allclose(found.emission, distributions(seen), atol=EXACT)


def test_rounds_on_triples_improve_their_fit() -> None:
    given, model = moments(sampled(small(), 4, 500, 0), SYMBOLS), small(1)
    fits = [misfit(given, improved(given, model, rounds)) for rounds in (0, 1, 5, 20)]
    assert fits == sorted(fits, reverse=True)
    assert fits[-1] < fits[0]


def test_negative_probabilities_are_told() -> None:
    model = random_hmm(5, 20, 0)
    operators = ObservableOperators(moments(sampled(model, 1, 300, 0), 20), 5)
    scores = operators.score(sampled(model, 1, 500, 1)[0])
    assert scores.negative > 0
    assert (scores.log_probs >= np.log(SMALLEST)).all()


def test_after_a_negative_probability_the_text_begins_again() -> None:
    model = small()
    operators = ObservableOperators(exact_moments(model), STATES)
    operators.operators[5] = 0.0
    scores = operators.score(np.array([5, 1, 2, 5, 3, 4]))
    assert scores.negative == 2
    for place, sentence in ((1, [1, 2]), (4, [3, 4])):
        truth = sentences(model.start, model.transition[None], model.emission)[tuple(sentence)]
        assert np.exp(scores.log_probs[place : place + 2].sum()) == pytest.approx(truth, rel=EXACT)


def test_smoothing_leaves_nothing_impossible() -> None:
    model = Probabilities(np.array([1.0, 0.0]), np.eye(2), np.eye(2)).smoothed(0.1)
    for part in model.tensors():
        assert (part > 0).all()
        torch.testing.assert_close(part.sum(-1), torch.ones_like(part.sum(-1)))


@pytest.mark.parametrize(
    ("tokens", "states", "sentence"),
    [
        (np.zeros((1, 2), int), 1, "at least three symbols"),
        (np.zeros((0, 9), int), 1, "at least three symbols"),
        (np.zeros((1, 9), int), 4, "no more than the"),
        (np.zeros((1, 9), int), 0, "at least 1 state"),
        (np.full((1, 9), 3), 1, "not 0 to 2"),
        (np.full((1, 9), -1), 1, "not 0 to 2"),
    ],
)
def test_what_cannot_be_learned(tokens: np.ndarray, states: int, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        ObservableOperators(moments(tokens, 3), states)


def test_a_rank_too_low() -> None:
    with pytest.raises(TrellisError, match="rank"):
        by_eigenvectors(moments(np.tile([0, 1], (1, 50)), 3), 3)


def test_weights_become_distributions() -> None:
    found = distributions(np.array([[1.0, 3.0], [-1.0, 2.0], [0.0, 0.0], [-1.0, -2.0]]))
    np.testing.assert_allclose(found, [[0.25, 0.75], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])


def test_too_few_frequent_symbols() -> None:
    with pytest.raises(TrellisError, match="Only 2 symbols are frequent enough to be anchors of 3 states"):
        by_anchors(moments(np.tile([0, 1], (1, 50)), 3), 3)


def test_as_many_frequent_symbols_as_states() -> None:
    found = by_anchors(moments(np.tile([0, 1], (1, 50)), 3), 2)
    np.testing.assert_allclose(sorted(found.emission.tolist()), [[0, 1, 0], [1, 0, 0]], atol=EXACT)


def test_the_smallest_text_and_model() -> None:
    given = moments(np.array([[0, 1, 1]]), 2)
    np.testing.assert_allclose(given.single, [1 / 3, 2 / 3])
    ones = ObservableOperators(moments(np.random.default_rng(0).integers(0, 3, (1, 300)), 3), 1)
    assert np.isfinite(ones.score(np.array([0, 1, 2])).log_probs).all()
