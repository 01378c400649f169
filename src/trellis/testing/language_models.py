"""Checks of language models: probabilities sum to one, and are the same token by token and in batches."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.testing.close import Check, assert_close, require

ROUNDING = 1e-4  # of log-probabilities in float32


def rows_of(model: Any, texts: list[str]) -> list[Tensor]:
    """Sentences as rows of tokens, including <eos>: [1, T] each."""
    return [model.encode_line(text, eos=True) for text in texts]


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows as one padded batch [B, T], and their lengths [B]."""
    lengths = torch.tensor([row.shape[1] for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : row.shape[1]] = row[0]
    return tokens, lengths


@torch.no_grad()
def sums_to_one(case: Any) -> None:
    """The probabilities of all next words sum to one after any prefix."""
    model, (tokens, _) = case.model, padded(rows_of(case.model, case.texts))
    state, shape = model.sentence_start(len(tokens)), (len(tokens), len(model.vocab))
    for t in range(tokens.shape[1] + 1):
        forecast = model.forecast(state)
        require(forecast.shape == shape, f"the shape of a forecast is {tuple(forecast.shape)}")
        assert_close(forecast.logsumexp(-1), np.zeros(len(tokens)), ROUNDING, f"log of the sum after {t} words")
        if t < tokens.shape[1]:
            _, state = model.score(tokens[:, t : t + 1], state)


@torch.no_grad()
def token_by_token(case: Any) -> None:
    """`score` of a sentence agrees with `forecast`, word by word."""
    model = case.model
    for row in rows_of(model, case.texts):
        found, state = model.score(row, model.sentence_start(1))[0][0], model.sentence_start(1)
        for t in range(row.shape[1]):
            assert_close(found[t], model.forecast(state)[0, row[0, t]].numpy(), ROUNDING, f"word {t}")
            _, state = model.score(row[:, t : t + 1], state)


@torch.no_grad()
def in_pieces(case: Any) -> None:
    """A sentence scored in two pieces has the same probabilities."""
    model = case.model
    for row in rows_of(model, case.texts):
        whole, _ = model.score(row, model.sentence_start(1))
        first, state = model.score(row[:, :2], model.sentence_start(1))
        second, _ = model.score(row[:, 2:], state)
        assert_close(torch.cat([first, second], 1), whole, ROUNDING)


@torch.no_grad()
def ragged(case: Any) -> None:
    """Sentences of different lengths have the same probabilities in a batch and alone, and zeros in the padding."""
    model, rows = case.model, rows_of(case.model, case.texts)
    tokens, lengths = padded(rows)
    together, state = model.score(tokens, model.sentence_start(len(rows)), lengths)
    forecast = model.forecast(state)
    for place, row in enumerate(rows):
        alone, after = model.score(row, model.sentence_start(1))
        assert_close(together[place, : row.shape[1]], alone[0], ROUNDING, f"sentence {place}")
        require((together[place, row.shape[1] :] == 0).all(), f"sentence {place} has nonzero values in the padding")
        assert_close(forecast[place], model.forecast(after)[0], ROUNDING, f"the state after sentence {place}")


@torch.no_grad()
def begun_anew(case: Any) -> None:
    """`reset` resets the selected sequences, and leaves the others unchanged."""
    model, (tokens, lengths) = case.model, padded(rows_of(case.model, case.texts))
    _, state = model.score(tokens, model.start(len(tokens)), lengths)
    before, fresh = model.forecast(state), model.forecast(model.start(len(tokens)))
    where = torch.arange(len(tokens)) % 2 == 0
    after = model.forecast(model.reset(state, where))
    assert_close(after[where], fresh[where], ROUNDING, "the state of sequences that were reset")
    assert_close(after[~where], before[~where], ROUNDING, "the state of the other sequences")


def on_text(case: Any) -> None:
    """`log_prob` and `token_log_probs` of a list agree with those of each sentence, and with the loaded model."""
    model = case.model
    together, totals = model.token_log_probs(case.texts), model.log_prob(case.texts)
    again = case.loaded.token_log_probs(case.texts)
    for text, row, total, loaded in zip(case.texts, together, totals, again, strict=True):
        require(len(row) == model.encode_line(text, eos=True).shape[1], f"{len(row)} values for {text!r}")
        require(np.isfinite(row).all(), f"{text!r} is impossible")
        np.testing.assert_allclose(model.token_log_probs(text), row, ROUNDING, ROUNDING)
        np.testing.assert_allclose(model.log_prob(text), total, ROUNDING, ROUNDING)
        np.testing.assert_array_equal(loaded, row)


def predictions(case: Any) -> None:
    """`predict` of all words returns probabilities that sum to one, in descending order."""
    for text in ("", case.texts[0]):
        ranked = case.model.predict(text, n=len(case.model.vocab))
        probs = [p for _, p in ranked]
        require(abs(sum(probs) - 1) < ROUNDING, f"they sum to {sum(probs)}")
        require(probs == sorted(probs, reverse=True), "they are not in descending order")


def samples(case: Any) -> None:
    """`sample` returns the requested number of sentences of known words, the same for the same seed."""
    one, same = (case.model.sample(5, max_tokens=9, seed=3) for _ in range(2))
    require(one == same, "two samples with the same seed differ")
    require(len(one) == 5 and all(isinstance(text, str) for text in one), f"it returned {one!r}")
    require(one == case.loaded.sample(5, max_tokens=9, seed=3), "the samples of the loaded model differ")


CHECKS: list[Check] = [
    sums_to_one, token_by_token, in_pieces, ragged, begun_anew, on_text, predictions, samples,
]  # fmt: skip
