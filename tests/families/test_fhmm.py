"""The factorial HMM: exact scores against the product-space HMM, features, samples, files, bad input."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from corpora import WORDS, fhmm, split, vocabulary
from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.factorial import joint as module
from trellis.families.factorial.config import FHMMConfig
from trellis.families.factorial.model import FHMM, build
from trellis.families.factorial.parameters import LayeredParams
from trellis.models.files import load, save_model
from trellis.tasks.lm import evaluate
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.types import Batch

SAMPLING = 0.05
SHAPES = [(3,), (2, 3), (2, 1, 2), (3, 3, 3, 3)]


def some_tokens() -> torch.Tensor:
    return torch.tensor([[1, 2, 4, 0], [5, 3, 2, 6], [6, 0, 0, 0]])


def forward_by_hand(model: FHMM, tokens: list[int]) -> list[float]:
    """log p(x_t | x_<t) with the matrix over joint states written out."""
    joint = model.exact()
    matrix, emission = (
        joint.transition.dense().numpy(),
        joint.emission.log_probs(torch.arange(len(WORDS))).exp().numpy(),
    )
    belief, scores = joint.start.numpy(), []
    for word in tokens:
        weights = belief * emission[word]
        scores.append(float(np.log(weights.sum())))
        belief = weights / weights.sum() @ matrix
    return scores


@pytest.mark.parametrize("sizes", SHAPES)
@torch.no_grad()
def test_scores_are_those_of_the_product_space(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, lengths = fhmm(sizes), some_tokens(), torch.tensor([4, 4, 1])
    whole, state = model.score(tokens, model.start(3), lengths)
    for row, n, scores in zip(tokens.tolist(), lengths.tolist(), whole, strict=True):
        assert_close(scores[:n], np.array(forward_by_hand(model, row[:n])))
    assert (whole[2, 1:] == 0).all()
    monkeypatch.setitem(module.ENTRIES, "cpu", 1)
    model = fhmm(sizes)
    pieces, after = model.score(tokens, model.start(3), lengths)
    assert_close(pieces, whole)
    assert_close(after.belief.probs, state.belief.probs)


@torch.no_grad()
def test_forecasts_are_the_scores_to_come() -> None:
    model, tokens = fhmm((2, 3)), some_tokens()
    _, state = model.score(tokens[:, :2], model.start(3))
    forecast = model.forecast(state)
    assert_close(forecast.exp().sum(-1), torch.ones(3))
    after, _ = model.score(tokens[:, 2:3], state)
    assert_close(forecast.gather(-1, tokens[:, 2:3]), after)


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
def test_features_are_distributions_per_layer(bound: str) -> None:
    model, tokens = fhmm((2, 3), bound), some_tokens()
    posterior, exact = model.smooth(tokens), model.smooth(tokens, exact=True)
    for probs in (posterior.probs, exact.probs, model.filter(tokens).probs):
        assert_close(torch.stack([part.sum(-1) for part in probs.split((2, 3), -1)]), torch.ones(2, 3, 4))
    assert (posterior.log_likelihood < exact.log_likelihood).all()
    path, _ = model.best_path(tokens)
    assert path.shape == (3, 4, 2)
    assert (path < torch.tensor([2, 3])).all()


def test_one_layer_is_exact() -> None:
    model, tokens = fhmm((4,)), some_tokens()
    one, other = model.smooth(tokens), model.smooth(tokens, exact=True)
    assert_close(one.log_likelihood, other.log_likelihood)
    assert_close(one.probs, other.probs)


def test_the_sampled_likelihood_is_near_the_exact_one() -> None:
    model, tokens = fhmm((2, 3)), some_tokens()
    assert_close(
        model.sampled_log_likelihood(tokens, samples=1000), model.smooth(tokens, exact=True).log_likelihood, SAMPLING
    )


@torch.no_grad()
def test_samples_follow_the_model() -> None:
    """The first word, and whether the sentence ends at once."""
    model = fhmm((2, 3))
    probs = model.forecast(model.start(1))[0].exp().numpy()
    drawn = [vocabulary().words.index(s.split()[0]) if s else 0 for s in model.sample(3000, max_tokens=2, seed=1)]
    assert chi_square(np.array(drawn), probs) > SMALLEST_P


@pytest.mark.parametrize("dim", [0, 2])
def test_save_and_load(tmp_path: Path, dim: int) -> None:
    model = fhmm((2, 1, 3), "jensen", dim)
    save_model(tmp_path / "m.safetensors", model)
    again = load(tmp_path / "m.safetensors")
    assert isinstance(again, FHMM)
    assert (again.sizes, again.bound, again.name) == ((2, 1, 3), "jensen", "fhmm-3-2+1+3")
    assert again.log_prob("the cat sees a dog") == model.log_prob("the cat sees a dog")


def test_layers_of_one_state_are_a_unigram_model() -> None:
    model = fhmm((1, 1))
    theta = model.params.emission()
    unigram = (theta.bias + theta.theta.sum(-1)).log_softmax(0)
    with torch.no_grad():
        scores, _ = model.score(some_tokens(), model.start(3))
    assert_close(scores, unigram[some_tokens()])
    assert_close(model.smooth(some_tokens()).log_likelihood, scores.sum(-1))


def test_perplexity_of_sentences_of_any_length() -> None:
    assert 1 < evaluate(fhmm((2, 2)), Sentences(split(), 64)).perplexity < 30


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda: FHMM.new(vocabulary(), ()), "at least one layer"),
        (lambda: FHMM.new(vocabulary(), (2, 0)), "at least 1 state"),
        (lambda: FHMM.new(vocabulary(), (2,), "tight"), "model.bound"),
        (lambda: FHMMConfig(layer_states="3,x").sizes, "layer_states"),
        (lambda: FHMMConfig(params="wild"), "model.params"),
        (lambda: fhmm((128,) * 3).start(1), "joint states"),
        (lambda: fhmm().infer(Batch(torch.tensor([[7]]), torch.tensor([1]), torch.tensor([True]))), "Token 7"),
    ],
)
def test_bad_input_is_told(spoil, says: str) -> None:
    with pytest.raises(TrellisError, match=says):
        spoil()


def test_numbers_that_are_none_are_told(tmp_path: Path) -> None:
    model = fhmm()
    with torch.no_grad():
        model.params.words[0, 0] = torch.nan
    with pytest.raises(TrellisError, match="non-finite parameters"):
        model.smooth(some_tokens())
    save_model(tmp_path / "m.safetensors", model)
    with pytest.raises(TrellisError, match="infinite or NaN"):
        load(tmp_path / "m.safetensors")


def test_sizes_come_from_the_configuration() -> None:
    corpus = Corpus(vocabulary(), {}, "")
    assert build(RunConfig(model=FHMMConfig(states=4, layers=2)), corpus).sizes == (4, 4)
    assert build(RunConfig(model=FHMMConfig(layer_states="5,2")), corpus).sizes == (5, 2)
    neural = FHMMConfig(layers=1, states=2, params="neural", dim=3)
    assert build(RunConfig(model=neural), corpus).params.states is not None


@torch.no_grad()
def test_factored_scores_are_products() -> None:
    params = LayeredParams((2, 2), 5, dim=3)
    assert params.states is not None
    for word, state in product(range(5), range(4)):
        expected = float((params.words[word] * params.states[:, state]).sum())
        assert float(params.theta()[word, state]) == pytest.approx(expected, abs=1e-6)
