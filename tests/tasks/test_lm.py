"""Perplexity is one function: whatever the batching, every token counts once."""

from __future__ import annotations

import math

import pytest
import torch

from corpora import hmm, split, vocabulary
from trellis.corpus.batches import Documents, Sentences, Streams
from trellis.errors import TrellisError
from trellis.families.ngram.model import NGram
from trellis.tasks.lm import Evaluation, evaluate

EXACT = 1e-8


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_one_stream_equals_the_whole_text(window: int) -> None:
    model, text = hmm(states=4, carry=True), split()
    tokens = torch.from_numpy(text.tokens.astype("int64"))[None]
    whole = float(model.score(tokens, model.start(1))[0].detach().sum())
    result = evaluate(model, Streams(text, 1, window))
    assert result.tokens == text.tokens.size
    assert result.log_likelihood == pytest.approx(whole, abs=EXACT)
    assert result.perplexity == pytest.approx(math.exp(-whole / tokens.numel()))


def test_sentences_are_independent() -> None:
    model, text = hmm(), split()
    lines = [text.tokens[a:b] for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True)]
    apart = sum(
        float(model.score(torch.tensor(x.astype("int64"))[None], model.start(1))[0].detach().sum()) for x in lines
    )
    assert evaluate(model, Sentences(text, 32)).log_likelihood == pytest.approx(apart, abs=EXACT)
    assert evaluate(model, Sentences(text, 8, shuffle=False)).log_likelihood == pytest.approx(apart, abs=EXACT)


def test_documents_carry_within_themselves() -> None:
    model, text = hmm(carry=True), split()
    documents = [text.tokens[a:b] for a, b in zip(text.documents[:-1], text.documents[1:], strict=True)]
    apart = sum(
        float(model.score(torch.tensor(x.astype("int64"))[None], model.start(1))[0].detach().sum()) for x in documents
    )
    assert evaluate(model, Documents(text, 3, 5)).log_likelihood == pytest.approx(apart, abs=EXACT)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_baselines_answer_the_same_function(order: int) -> None:
    fitted = NGram.fit(vocabulary(), split(), order)
    assert 1 < evaluate(fitted, Streams(split(), 1, 9)).perplexity < len(vocabulary())
    streamed, once = (evaluate(fitted, Streams(split(), 1, w)).log_likelihood for w in (3, 1000))
    assert streamed == pytest.approx(once, abs=EXACT)


def test_edges() -> None:
    assert Evaluation(-math.inf, 3).perplexity == math.inf
    with pytest.raises(TrellisError, match="Nothing to evaluate"):
        evaluate(hmm(), [])
