"""Dynamic evaluation: against a loop written by hand, normalised, causal, and without a trace in the model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from corpora import STATES, SUPPORTS, hmm, split, vocabulary
from trellis.corpus import Split
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.neural.rnn import LSTM
from trellis.families.ngram.model import NGram
from trellis.tasks.dynamic import RATES, SEGMENT, STATIC, Adaptation, Dynamic, beginning
from trellis.tasks.lm import READINGS, in_text_order

EXACT = 1e-10
STRONG = Adaptation(0.05, 0.02)


def lstm() -> LSTM:
    torch.manual_seed(0)
    return LSTM(vocabulary(), 4).double().eval()


def markov() -> Any:
    return hmm(carry=True).requires_grad_(True)


def neural() -> Any:
    """An HMM with nets over embeddings, in which the states of a word are those of its class."""
    config = HMMConfig(states=STATES, params="neural", dim=4, emission="cloned", factored=True)
    return HMM.build(vocabulary(), config, True, 0, SUPPORTS["uneven"]).double().eval()


MODELS = {"lstm": lstm, "hmm": markov, "neural": neural}


def dynamic(name: str, order: str) -> Dynamic:
    model = MODELS[name]()
    model.about = {"order": order}
    return Dynamic(model, split(40, seed=1))


def first_tokens(text: Split, count: int, then: tuple[int, ...] = ()) -> Split:
    """The first tokens of a text and some others, as one sentence."""
    tokens = np.append(text.tokens[:count], np.array(then, np.int32)).astype(np.int32)
    return Split(tokens, np.array([0, tokens.size]), np.array([0, tokens.size]))


def pieces_of(text: Split, order: str) -> list[tuple[int, int, bool]]:
    """(begin, end, fresh) of every segment, in text order."""
    whole = np.array([0, text.tokens.size])
    bounds = {"streams": whole, "documents": text.documents, "sentences": text.sentences}[order]
    return [(at, min(at + SEGMENT, b), at == a) for a, b in pairwise(bounds.tolist()) for at in range(a, b, SEGMENT)]


@pytest.mark.parametrize("order", ["streams", "documents", "sentences"])
@pytest.mark.parametrize("name", MODELS)
def test_against_a_loop_written_by_hand(name: str, order: str) -> None:
    adapted, text = dynamic(name, order), split(30)
    model = MODELS[name]()
    weights = [w for w in model.parameters() if w.requires_grad]
    trained = [w.detach().clone() for w in weights]
    expected, state = [], model.start(1)
    for begin, end, fresh in pieces_of(text, order):
        if fresh:
            state = model.start(1)
        tokens = torch.tensor(text.tokens[begin:end].astype(np.int64))[None]
        model.zero_grad()
        log_probs, state = model.score(tokens, state)
        (-log_probs.mean()).backward()
        state = model.state_from_tensors({k: v.detach() for k, v in model.state_to_tensors(state).items()})
        expected.append(log_probs.detach()[0].numpy())
        with torch.no_grad():
            for weight, scale, origin in zip(weights, adapted.scales, trained, strict=True):
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight -= STRONG.rate * gradient / scale + STRONG.decay * (weight - origin)
    found = adapted.log_probs(text, STRONG)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=EXACT)
    static = in_text_order(adapted.model, READINGS[order](text))
    assert np.abs(found - static).max() > 0.01
    np.testing.assert_allclose(adapted.log_probs(text, STATIC), static, rtol=0, atol=EXACT)  # the weights are restored


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("past", [0, SEGMENT - 1, SEGMENT, 2 * SEGMENT + 3])
def test_probabilities_of_the_next_word_sum_to_one(name: str, past: int) -> None:
    adapted, text = dynamic(name, "streams"), split(40)
    texts = [first_tokens(text, past, (word,)) for word in range(len(adapted.model.vocab))]
    total = sum(np.exp(adapted.log_probs(one, STRONG)[-1]) for one in texts)
    assert total == pytest.approx(1, abs=EXACT)


def test_later_tokens_change_nothing() -> None:
    adapted, text = dynamic("hmm", "streams"), split(40)
    short, long = (adapted.log_probs(first_tokens(text, n), STRONG) for n in (3 * SEGMENT, 4 * SEGMENT))
    np.testing.assert_allclose(long[: 3 * SEGMENT], short, rtol=0, atol=EXACT)


def test_the_scale_of_the_gradients() -> None:
    """sqrt(mean g²) over all training segments, plus its mean over the tensor."""
    adapted, train = dynamic("hmm", "documents"), split(40, seed=1)
    squares = [torch.zeros_like(weight) for weight in adapted.weights]
    pieces, state = pieces_of(train, "documents"), None
    for begin, end, fresh in pieces:
        state = adapted.model.start(1) if fresh else state
        tokens = torch.tensor(train.tokens[begin:end].astype(np.int64))[None]
        log_probs, state = adapted.model.score(tokens, state)
        gradients = torch.autograd.grad(-log_probs.mean(), adapted.weights, materialize_grads=True)
        state = adapted.model.state_from_tensors(
            {k: v.detach() for k, v in adapted.model.state_to_tensors(state).items()}
        )
        for square, gradient in zip(squares, gradients, strict=True):
            square += gradient**2 / len(pieces)
    for found, square in zip(adapted.scales, squares, strict=True):
        assert torch.allclose(found, square.sqrt() + square.sqrt().mean(), rtol=EXACT, atol=EXACT)


def test_a_text_of_one_repeated_sentence_is_worth_adapting_to() -> None:
    adapted, text = dynamic("lstm", "streams"), split(1)
    repeated = first_tokens(text._replace(tokens=np.tile(text.tokens, 200)), 400)
    how = adapted.choose(repeated)
    assert how.rate == max(RATES)
    assert adapted.log_probs(repeated, how).sum() > adapted.log_probs(repeated, STATIC).sum()


def test_the_beginning_of_a_text() -> None:
    text = split(40)
    for tokens in (1, int(text.sentences[3]), int(text.sentences[3]) + 1, text.tokens.size, 10_000):
        part = beginning(text, tokens)
        size = min(tokens, text.tokens.size)
        np.testing.assert_array_equal(part.tokens, text.tokens[:size])
        for ends, whole in ((part.sentences, text.sentences), (part.documents, text.documents)):
            assert ends[-1] == size
            assert set(ends[:-1]) == {end for end in whole.tolist() if end < size}


def test_a_model_without_gradient_is_rejected() -> None:
    model = NGram.fit(vocabulary(), split(40), 2)
    with pytest.raises(TrellisError, match="no dynamic evaluation"):
        Dynamic(model, split(40))
