"""Neural language models against explicit loops in float64: one step at a time, one sequence at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corpora import WORDS, split, vocabulary
from trellis.config import TrainConfig
from trellis.corpus.batches import Documents, Sentences, Streams
from trellis.errors import TrellisError
from trellis.families.neural import base
from trellis.families.neural.base import NeuralModel
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.learning.gradient import GradientLearner
from trellis.storage import load_tensors
from trellis.tasks.lm import evaluate
from trellis.training.checkpoint import BEST, LAST
from trellis.training.loop import fit
from trellis.types import Batch

EXACT = 1e-10
STEP, SLOPE = 1e-6, 1e-6  # of the finite differences, and their relative error
EOS = vocabulary().eos

MODELS: dict[str, Callable[..., NeuralModel]] = {
    "feedforward": lambda dropout=0.0: FeedForward(vocabulary(), 4, 2, dropout, window=3),
    "feedforward with hidden units": lambda dropout=0.0: FeedForward(vocabulary(), 4, 1, dropout, window=2, hidden=3),
    "feedforward untied": lambda dropout=0.0: FeedForward(vocabulary(), 4, 1, dropout, window=1, tied=False),
    "lstm": lambda dropout=0.0: LSTM(vocabulary(), 4, 2, dropout),
    "lstm untied": lambda dropout=0.0: LSTM(vocabulary(), 3, 1, dropout, tied=False),
    "rnn": lambda dropout=0.0: RNN(vocabulary(), 4, dropout),
}


def build(name: str, seed: int = 0, **settings: float) -> NeuralModel:
    """A model in float64 with weights large enough to matter."""
    torch.manual_seed(seed)
    model = MODELS[name](**settings).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape))
    return model


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> NeuralModel:
    return build(request.param).requires_grad_(False)


def tokens(batch: int = 3, steps: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, len(WORDS), (batch, steps), generator=torch.Generator().manual_seed(seed))


def next_word(model: NeuralModel, features: Tensor) -> Tensor:
    """log softmax(E f + b), written out."""
    table = model.embedding if model.output is None else model.output
    scores = torch.stack([(row * features).sum() for row in table])
    scores = scores if model.bias is None else scores + model.bias
    return scores - scores.exp().sum().log()


def feedforward_by_hand(model: FeedForward, past: list[int]) -> Tensor:
    latest = ([EOS] * model.window + past)[-model.window :]
    features = torch.stack([model.embedding[word] for word in latest], -1).flatten()
    for linear, _, norm, _ in model.layers:
        features = (linear.weight @ features + linear.bias).clamp(min=0)
        centred = features - features.mean()
        features = centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
    if model.hidden:
        features = model.back.weight @ features + model.back.bias
    return next_word(model, features)


def lstm_by_hand(model: LSTM, past: list[int]) -> Tensor:
    memory = [(torch.zeros(model.dim), torch.zeros(model.dim)) for _ in model.layers]
    for word in [EOS, *past]:
        features = model.embedding[word]
        for number, layer in enumerate(model.layers):
            hidden, cell = (value.double() for value in memory[number])
            gates = layer.weight_ih_l0 @ features + layer.bias_ih_l0 + layer.weight_hh_l0 @ hidden + layer.bias_hh_l0
            enter, forget, new, leave = gates.chunk(4)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            features = leave.sigmoid() * cell.tanh()
            memory[number] = features, cell
    return next_word(model, features)


def rnn_by_hand(model: RNN, past: list[int]) -> Tensor:
    hidden = torch.zeros(model.dim, dtype=torch.float64)
    for word in [EOS, *past]:
        hidden = 1 / (1 + torch.exp(-(model.recurrent @ hidden + model.embedding[word])))
    return next_word(model, hidden)


BY_HAND = {"feedforward": feedforward_by_hand, "lstm": lstm_by_hand, "rnn": rnn_by_hand}


def test_every_step_by_hand(model: NeuralModel) -> None:
    rows = tokens()
    expected = [[BY_HAND[model.family](model, row[:t])[row[t]] for t in range(len(row))] for row in rows.tolist()]
    actual, _ = model.score(rows, model.start(len(rows)))
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=EXACT)


def test_scoring_in_windows_equals_scoring_at_once(model: NeuralModel) -> None:
    rows = tokens()
    whole, after = model.score(rows, model.start(3))
    state, parts = model.start(3), []
    for window in rows.split([1, 5, 2, 4], dim=1):
        log_probs, state = model.score(window, state)
        parts.append(log_probs)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=EXACT)
    torch.testing.assert_close(model.forecast(state), model.forecast(after), rtol=0, atol=EXACT)


def test_ragged_rows_equal_rows_alone(model: NeuralModel) -> None:
    """A row of no tokens keeps its state; a short one is scored, and goes on, as if it were alone."""
    rows, lengths = tokens(4, 6), torch.tensor([6, 2, 0, 5])
    _, state = model.score(tokens(4, 3, seed=2), model.start(4))
    log_probs, after = model.score(rows, state, lengths)
    for b, length in enumerate(lengths.tolist()):
        one = {name: value[b : b + 1] for name, value in state.items()}
        alone, then = model.score(rows[b : b + 1, :length], one) if length else (torch.zeros(1, 0).double(), one)
        torch.testing.assert_close(log_probs[b, :length], alone[0], rtol=0, atol=EXACT)
        assert not log_probs[b, length:].any()
        torch.testing.assert_close(model.forecast(after)[b], model.forecast(then)[0], rtol=0, atol=EXACT)


def test_forecast_sums_to_one_and_agrees_with_score(model: NeuralModel) -> None:
    _, state = model.score(tokens(), model.start(3))
    forecast = model.forecast(state)
    torch.testing.assert_close(forecast.exp().sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=EXACT)
    for word in range(len(WORDS)):
        following, _ = model.score(torch.full((3, 1), word), state)
        torch.testing.assert_close(following[:, 0], forecast[:, word], rtol=0, atol=EXACT)


def test_reset_begins_chosen_sequences_anew_and_narrows(model: NeuralModel) -> None:
    _, state = model.score(tokens(), model.start(3))
    forecast = model.forecast(model.reset(state, torch.tensor([True, False])))
    torch.testing.assert_close(forecast[0], model.forecast(model.start(1))[0], rtol=0, atol=EXACT)
    torch.testing.assert_close(forecast[1], model.forecast(state)[1], rtol=0, atol=EXACT)


@pytest.mark.parametrize("logits", [1, 3 * len(WORDS)])
def test_few_logits_at_a_time_change_nothing(logits: int, model: NeuralModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = model.score(tokens(), model.start(3))
    monkeypatch.setattr(base, "LOGITS", logits)
    torch.testing.assert_close(model.score(tokens(), model.start(3))[0], whole, rtol=0, atol=EXACT)


def ragged_batch() -> Batch:
    return Batch(tokens(3, 5), torch.tensor([5, 2, 4]), torch.tensor([False, True, False]))


@pytest.mark.parametrize("name", MODELS)
def test_loss_is_the_score_and_its_gradient_is_its_slope(name: str) -> None:
    model = build(name)
    _, carried = model.score(tokens(4, 3, seed=2), model.start(4))
    carried = {key: value.detach() for key, value in carried.items()}
    batch = ragged_batch()
    loss, _ = model.log_likelihood(batch, carried)
    expected, _ = model.score(batch.tokens, model.reset(carried, batch.fresh), batch.lengths)
    torch.testing.assert_close(loss, expected.sum(), rtol=0, atol=EXACT)
    loss.backward()
    for weight in model.parameters():
        direction = torch.randn_like(weight)
        slope = sum(sign * moved_loss(model, weight, sign * direction, batch, carried) for sign in (1, -1)) / (2 * STEP)
        assert float((weight.grad * direction).detach().sum()) == pytest.approx(slope, rel=SLOPE, abs=SLOPE)


@torch.no_grad()
def moved_loss(model: NeuralModel, weight: Tensor, direction: Tensor, batch: Batch, state: base.State) -> float:
    """The loss with one weight moved a little."""
    kept = weight.clone()
    weight += STEP * direction
    loss, _ = model.log_likelihood(batch, state)
    weight.copy_(kept)
    return float(loss)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_never_waits_for_the_device(name: str) -> None:
    """Tensors on the meta device have no values: whatever asks for one fails."""
    model = build(name, dropout=0.3).to("meta").train()
    batch = ragged_batch().to(torch.device("meta"))
    _, state = model.log_likelihood(batch, None)
    loss, _ = model.log_likelihood(batch, state)
    assert (loss.shape, loss.device.type) == ((), "meta")


@pytest.mark.parametrize("name", ["lstm", "rnn"])
def test_dropout_leaves_out_a_unit_for_a_whole_window(name: str) -> None:
    model = build(name, dropout=0.5).train()
    dropped = model.drop(torch.ones(50, 7, 4))
    assert bool((dropped == dropped[:, :1]).all())
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert bool((model.eval().drop(torch.ones(5, 7, 4)) == 1).all())


@pytest.mark.parametrize("name", ["feedforward", "lstm", "rnn"])
def test_a_text_is_learned_by_heart(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    text = split(1)._replace(tokens=np.tile(np.array([1, 2, 4, 5, 3, 0], np.int32), 40))
    learner = GradientLearner(model, TrainConfig(learner="gradient", lr=0.05), 0)
    for _ in range(12):
        for batch in Streams(text, 4, 10):
            learner.step(batch)
        learner.end_epoch()
    with learner.evaluated():
        assert 1 < evaluate(model, Streams(text, 1, 50)).perplexity < 2


def test_orders_of_batches_agree_on_what_they_mean(model: NeuralModel) -> None:
    text = split(20)
    lines = [text.tokens[a:b] for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True)]
    apart = sum(float(model.score(torch.tensor(x.astype("int64"))[None], model.start(1))[0].sum()) for x in lines)
    assert evaluate(model, Sentences(text, 16)).log_likelihood == pytest.approx(apart, abs=EXACT)
    documents = evaluate(model, Documents(text, 2, 5)).log_likelihood
    assert documents == pytest.approx(evaluate(model, Documents(text, 1, 1000)).log_likelihood, abs=EXACT)
    once = float(model.score(torch.from_numpy(text.tokens.astype("int64"))[None], model.start(1))[0].sum())
    assert evaluate(model, Streams(text, 1, 7)).log_likelihood == pytest.approx(once, abs=EXACT)


class Killed(Exception):  # noqa: N818
    """Stands for a kill: nothing survives but the files."""


def train(name: str, folder: Path, order: type, die_at: int | None = None) -> None:
    """A short training with all that has a state: dropout, carried memory, average, schedule."""
    torch.manual_seed(0)
    config = TrainConfig(epochs=3, checkpoint_steps=2, checkpoint_seconds=0, lr=0.05, schedule="cosine", average=0.9)
    text = split(30)
    batches = order(text, 3, 8) if order is Streams else order(text, 3, 8, 0)
    model = MODELS[name](0.3)
    learner = GradientLearner(model, config, config.total_steps(len(batches)))
    learn = learner.step

    def step(batch: Batch):
        if learner.steps == die_at:
            raise Killed
        return learn(batch)

    learner.step = step
    fit(learner, batches, lambda: evaluate(model, Streams(text, 1, 64)).perplexity, config, folder, resume=True)


@pytest.mark.parametrize("order", [Streams, Documents])
@pytest.mark.parametrize("name", ["feedforward", "lstm", "rnn"])
def test_a_training_that_dies_ends_in_the_same_bits(name: str, order: type, tmp_path: Path) -> None:
    train(name, tmp_path / "whole", order)
    for step in (1, 4, 7):
        with pytest.raises(Killed):
            train(name, tmp_path / "killed", order, die_at=step)
    train(name, tmp_path / "killed", order)
    for file in (LAST, BEST):
        one, other = load_tensors(tmp_path / "whole" / file), load_tensors(tmp_path / "killed" / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda v: LSTM(v, 0), r"model\.dim is 0"),
        (lambda v: LSTM(v, 4, 0), r"model\.depth is 0"),
        (lambda v: FeedForward(v, 4, window=0), r"model\.window is 0"),
        (lambda v: RNN(v, 4, dropout=1.0), r"model\.net_dropout is 1\.0"),
        (lambda v: RNN(v, 4, dropout=math.nan), r"model\.net_dropout is nan"),
    ],
)
def test_bad_sizes_are_explained(call, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        call(vocabulary())


def test_tied_weights_are_saved_and_counted_once() -> None:
    tied, untied = (LSTM(vocabulary(), 5, 1, tied=tied) for tied in (True, False))
    layer = sum(weight.numel() for weight in nn.LSTM(5, 5).parameters())
    assert tied.num_parameters() == 7 * 5 + 7 + layer
    assert untied.num_parameters() == 2 * 7 * 5 + 7 + layer
