"""Occupancy, entropies and normalisation, against enumeration and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from corpora import hmm, split, vocabulary
from experiments.analyses import check_normalisation
from trellis.corpus import Split
from trellis.corpus.batches import Sentences, Streams
from trellis.errors import TrellisError
from trellis.families.hmm import states
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import measure_states, visit_states
from trellis.families.ngram.model import NGram
from trellis.testing.oracle import Paths

EXACT = 1e-10
SUPPORTS = {
    "full": None,
    "classes": torch.tensor([[0, 1], [2, 3], [2, 3], [2, 3], [0, 1], [0, 1], [2, 3]]),
    "overlapping, state 3 without words": torch.tensor([[0, 1], [1, 2], [0, 2], [1, 0], [2, 0], [2, 1], [0, 1]]),
}


def model_of(support: str, carry: bool = True) -> HMM:
    """Four states in float64."""
    model = HMM.new(vocabulary(), 4, carry, seed=3, support=SUPPORTS[support])
    return model.to(torch.float64).requires_grad_(False)


def short_text(tokens: int) -> Split:
    text = split().tokens[:tokens]
    return Split(text, np.array([0, tokens]), np.array([0, tokens]))


def enumerated(model: HMM, tokens: np.ndarray) -> Paths:
    start, transition, emission = model.parts()
    matrices = transition.dense().expand(len(tokens) - 1, -1, -1).numpy()
    return Paths(start.numpy(), matrices, emission.dense().exp().numpy()[tokens])


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("window", [2, 3, 7])
def test_visits_are_posteriors_given_the_past_and_the_window(support: str, window: int) -> None:
    model, text = model_of(support), short_text(7)
    visits, best = visit_states(model, Streams(text, 1, window))
    paths, batches = enumerated(model, text.tokens), Streams(text, 1, window)
    ends = np.cumsum([int(batch.lengths) for batch in batches])
    begins = np.append(0, ends[:-1])
    expected = np.concatenate([paths.prefix(b).smoothed()[a:b] for a, b in zip(begins, ends, strict=True)])
    np.testing.assert_allclose(visits.numpy(), expected.sum(0), atol=EXACT)
    assert set(best.nonzero().flatten().tolist()) == set(expected.argmax(1).tolist())


@pytest.mark.parametrize("support", SUPPORTS)
def test_entropies_are_those_of_the_rows(support: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "CHUNK", 9)  # two rows of four at a time
    model = model_of(support)
    found = measure_states(model, Streams(split(), 1, 50))
    visits, best = (tensor.numpy() for tensor in visit_states(model, Streams(split(), 1, 50)))
    emission, transition = model.parts().emission.dense().exp().numpy(), model.parts().transition.dense().numpy()
    speaking = emission.sum(0) > 0
    emit = np.where(speaking, stats.entropy(np.where(speaking, emission, 1.0)), 0.0)
    move = stats.entropy(transition, axis=1)
    share = visits / visits.sum()
    assert found.occupancy == best.mean()
    assert found.effective_states == pytest.approx(np.exp(stats.entropy(share)), abs=EXACT)
    assert found.emission_entropy == pytest.approx(emit[speaking].mean(), abs=EXACT)
    assert found.transition_entropy == pytest.approx(move[speaking].mean(), abs=EXACT)
    assert found.visited_emission_entropy == pytest.approx(share @ emit, abs=EXACT)
    assert found.visited_transition_entropy == pytest.approx(share @ move, abs=EXACT)


def test_every_token_of_padded_batches_counts_once() -> None:
    model, text = model_of("classes", carry=False), split()
    lines = [text.tokens[a:b] for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True)]
    visits, best = visit_states(model, Sentences(text, 64))
    smoothed = np.concatenate([enumerated(model, line).smoothed() for line in lines])
    np.testing.assert_allclose(visits.numpy(), smoothed.sum(0), atol=EXACT)
    assert set(best.nonzero().flatten().tolist()) == set(smoothed.argmax(1).tolist())


def test_a_state_that_is_never_needed_is_not_occupied() -> None:
    model = model_of("classes")
    eos = Split(np.zeros(9, np.int32), np.arange(10), np.array([0, 9]))  # <eos> belongs to states 0 and 1
    found = measure_states(model, Streams(eos, 1, 4))
    assert found.occupancy <= 0.5
    assert 1.0 <= found.effective_states <= 2.0


@pytest.mark.parametrize("support", ["full", "classes"])
def test_probabilities_of_the_next_word_sum_to_one(support: str) -> None:
    result = check_normalisation(model_of(support), Streams(split(), 4, 5), contexts=10)
    assert result.deviation < EXACT
    assert result.contexts == 12  # whole batches of four


def test_normalisation_of_other_models_and_of_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_normalisation(NGram.fit(vocabulary(), split(), 2), Streams(split(), 2, 5)).deviation < 1e-5
    model = hmm()
    forecast = model.forecast
    monkeypatch.setattr(model, "forecast", lambda state: forecast(state) + np.log(1.25))
    assert check_normalisation(model, Streams(split(), 2, 5)).deviation == pytest.approx(0.25)
    monkeypatch.setattr(model, "forecast", lambda state: forecast(state) * torch.nan)
    assert np.isnan(check_normalisation(model, Streams(split(), 2, 5)).deviation)


def test_nothing_to_measure() -> None:
    with pytest.raises(TrellisError, match="Nothing to measure"):
        measure_states(hmm(), [])
    with pytest.raises(TrellisError, match="There is nothing to measure"):
        check_normalisation(hmm(), [])
