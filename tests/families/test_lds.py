"""The LDS of a text: vectors of tokens, densities, files, and the network it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import trellis
from lds_oracle import log_density, markov_text, one_hot, written_out
from trellis.corpus import Split, Vocabulary
from trellis.errors import TrellisError
from trellis.families.lds import fit
from trellis.families.lds.learning import count_text, fit_lds
from trellis.families.lds.model import LDS
from trellis.families.lds.parameters import NOISES
from trellis.families.neural.rnn import RNN, rnn_weights
from trellis.models.base import LanguageModel
from trellis.models.files import load, save_model
from trellis.progress import Progress

WORDS = ["<eos>", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "never"]
DIM, EXACT = 3, 1e-8
SINGLE = 1e-6  # vectors in float32
TINY = {"blocks": 3, "pseudocounts": 1.0, "noise_prior": 2.0}


def as_split(text: np.ndarray) -> Split:
    ends = np.array([0, len(text)])
    return Split(text.astype(np.int32), ends, ends)


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    return markov_text(words=12)


@pytest.fixture(scope="module")
def vocab(text) -> Vocabulary:
    return Vocabulary(WORDS, np.bincount(text, minlength=len(WORDS)).tolist())


@pytest.fixture(scope="module")
def model(vocab, text) -> LDS:
    return fit_lds(vocab, count_text(vocab, as_split(text), 3, 7), DIM, 5, **TINY)


@pytest.mark.parametrize("noise", NOISES)
def test_the_filter_over_words_is_that_of_the_written_out_system(vocab, text, noise) -> None:
    model = fit_lds(vocab, count_text(vocab, as_split(text), 3, 7), DIM, 2, **TINY, noise=noise)
    coordinates, parameters = model.emission.coordinates, model.parameters
    dense, A, C = written_out(parameters, coordinates), parameters.transition, parameters.loadings
    rows = np.eye(len(coordinates.scale))[model.rows.numpy()[text[:40]]]
    words = (rows - coordinates.frequency) * coordinates.scale
    cov, mean, means, densities = model.tables["stationary"].numpy(), np.zeros(DIM), [], []
    for word in words:
        S = C @ cov @ C.T + dense.noise
        gain = cov @ C.T @ dense.basis @ np.linalg.inv(dense.basis.T @ S @ dense.basis) @ dense.basis.T
        densities.append(log_density((word - C @ mean)[None], dense._replace(innovation=S), coordinates)[0])
        mean = mean + gain @ (word - C @ mean)
        means.append(mean)
        mean, cov = A @ mean, A @ (cov - gain @ C @ cov) @ A.T + np.eye(DIM)
    found = model.filter(torch.from_numpy(text[None, :40]))
    np.testing.assert_allclose(found.means[0].numpy(), means, atol=EXACT)
    np.testing.assert_allclose(found.log_norms[0].numpy(), densities, rtol=EXACT)


def test_training_made_the_text_likelier_than_words_without_memory(model, text) -> None:
    assert model.nats_per_token(as_split(text)) > model.static_nats_per_token(as_split(text)) + 0.01


@pytest.mark.parametrize("length", [60, 100, 101, 434, 484, 485, 900])  # 100 warm up, 3 windows make 384
def test_a_stream_in_windows_is_one_stream(model, text, monkeypatch, length) -> None:
    whole = model.nats_per_token(as_split(text[:length]))  # one window
    monkeypatch.setattr("trellis.families.lds.model.WINDOW", 128)
    monkeypatch.setattr("trellis.families.lds.model.LANES", 3)
    assert model.nats_per_token(as_split(text[:length])) == pytest.approx(whole, rel=EXACT)


def test_sentences_side_by_side_are_sentences_alone(model, text) -> None:
    tokens = torch.from_numpy(text[:30]).view(3, 10)
    lengths = torch.tensor([10, 4, 7])
    together = model.smooth(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model.smooth(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], atol=EXACT, rtol=EXACT)


def test_nothing_gives_nothing(model) -> None:
    assert model.smooth(torch.zeros(1, 0, dtype=torch.int64)).shape == (1, 0, DIM)
    assert model.smooth(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, DIM)


def test_an_unseen_word_says_nothing(model) -> None:
    never = torch.tensor([[1, WORDS.index("never"), 2]])
    gap = torch.tensor([[1, -1, 2]])
    torch.testing.assert_close(model.smooth(never), model.smooth(gap))
    assert float(model.filter(never).log_norms[0, 1]) == 0.0
    assert not model.type_vectors()[WORDS.index("never")].any()


def test_vectors_are_of_unit_length_and_know_their_context(model) -> None:
    for what in ("smoothed", "filtered", "type"):
        vectors = model.embed("a b c a", what)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=SINGLE)
        assert np.array_equal(vectors[0], vectors[3]) is (what == "type")
    with pytest.raises(TrellisError, match="no 'loud' features; it has smoothed, filtered, type"):
        model.embed("a b", "loud")


def test_the_whitened_vectors_of_the_text_are_white(model, text) -> None:
    vectors = model.smooth(torch.from_numpy(text[None])) @ model.tables["whiten"]
    torch.testing.assert_close(vectors[0].T @ vectors[0] / len(text), torch.eye(DIM).double(), atol=0.02, rtol=0)


def test_neighbours_and_dynamics_are_words(model) -> None:
    near = model.neighbours("a b c", 1, n=4)
    assert len(near) == 4
    assert near == sorted(near, key=lambda pair: -pair[1])
    expected = model.type_vectors() @ torch.from_numpy(model.embed("a b c")[1]).double()
    assert near[0][0] == WORDS[int(expected.argmax())]
    _, values, right = np.linalg.svd(model.parameters.transition)
    pairs = model.dynamics(2, 3)
    assert [pair.value for pair in pairs] == pytest.approx(values[:2])
    said = model.parameters.loadings @ right[0]
    best = {int(said.argmax()), int(said.argmin())}
    assert int(model.rows[WORDS.index(pairs[0].before[0])]) in best
    assert all(len(pair.before) == len(pair.after) == 3 for pair in pairs)


def test_a_saved_model_is_the_same_and_is_no_language_model(model, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    again = load(tmp_path)
    assert isinstance(again, LDS)
    torch.testing.assert_close(again.smooth(torch.tensor([[1, 2, 3]])), model.smooth(torch.tensor([[1, 2, 3]])))
    with pytest.raises(TrellisError, match="no probabilities"):
        load(tmp_path, LanguageModel)


@pytest.mark.parametrize("choices", [{"noise": "diagonal"}, {"whiten": False}, {"init": "random"}])
def test_other_kinds_are_saved_whole(vocab, text, tmp_path: Path, choices) -> None:
    model = fit_lds(vocab, count_text(vocab, as_split(text), 3, 7), DIM, 2, **TINY, **choices)
    save_model(tmp_path / "model", model, {})
    same = load(tmp_path / "model")
    assert isinstance(same, LDS)
    assert same.nats_per_token(as_split(text)) == model.nats_per_token(as_split(text))


def test_sentences_of_words_are_embedded_as_lines_are(model) -> None:
    lines = ["a b c", "d", "k j i h g"]
    for what in ("smoothed", "filtered", "type"):
        alone = [model.embed(line, what) for line in lines]
        for found, expected in zip(model.embed([line.split() for line in lines], what), alone, strict=True):
            np.testing.assert_allclose(found, expected, atol=SINGLE)


def test_rare_words_share_a_row(vocab, text) -> None:
    model = fit_lds(vocab, count_text(vocab, as_split(text), 3, 7, words=6), 2, 2, blocks=3)
    assert model.parameters.loadings.shape == (6, 2)
    vectors = model.type_vectors()
    shared = (model.rows == 5).nonzero().flatten()
    assert len(shared) == 7
    torch.testing.assert_close(vectors[shared], vectors[shared[:1]].expand(7, -1))


def test_the_network_is_the_filter_as_long_as_its_units_stay_small(model, text) -> None:
    steady = model.tables["gain"], model.tables["vectors"], model.tables["whiten"]
    coordinates = model.emission.coordinates
    forecast = model.parameters.loadings @ model.parameters.transition / coordinates.scale[:, None]
    deviation = np.sqrt(np.einsum("ni,ij,nj->n", forecast, model.spread.numpy(), forecast))
    errors = []
    for reach in (0.1, 0.01):
        weights = {name: value.double() for name, value in rnn_weights(model, reach).items()}
        hidden, mean, worst = torch.zeros(DIM + 1).double(), torch.zeros(DIM).double(), 0.0
        for word in text[:30]:
            hidden = torch.sigmoid(weights["recurrent"] @ hidden + weights["embedding"][word])
            moved = torch.from_numpy(model.parameters.transition) @ mean
            row = int(model.rows[word])
            mean = moved + steady[0] @ (steady[1][row] - model.tables["information"] @ moved)
            worst = max(worst, float((4 / reach * (hidden[:-1] - 0.5) - steady[2] @ mean).abs().max()))
            logits = weights["output"] @ hidden
            change = forecast @ mean.numpy()
            level = np.log(coordinates.frequency) + change / (coordinates.frequency + deviation)
            difference = np.abs(logits.numpy()[:12] - level[model.rows.numpy()[:12]]).max()
            worst = max(worst, float(difference))
        errors.append(worst)
    assert errors[0] < 0.2
    assert errors[1] < 0.02


def test_the_recurrent_network_begins_better_than_word_frequencies(model, text) -> None:
    network = RNN.from_lds(model).eval()
    tokens = torch.from_numpy(text[None, :2000])
    with torch.no_grad():
        log_probs, _ = network.score(tokens, network.start(1))
    frequency = torch.bincount(tokens[0], minlength=len(WORDS)) / tokens.numel()
    alone = float((frequency * frequency.log().nan_to_num(neginf=0)).sum())
    assert network.dim == DIM + 1
    assert float(log_probs.mean()) > alone


def test_what_cannot_be_fitted_is_told(vocab) -> None:
    with pytest.raises(TrellisError, match="tokens"):
        count_text(vocab, as_split(np.arange(9)), 4, 7)
    with pytest.raises(TrellisError, match="at least 1"):
        fit_lds(vocab, count_text(vocab, as_split(np.arange(40) % 5), 4, 7), 0)


def test_one_hot_words_sum_to_nothing(model, text) -> None:
    class Counted:
        rows, counts = model.rows.numpy(), model.counts.numpy()

    words = one_hot(text[:50], Counted, model.emission.coordinates)
    assert np.abs(words @ model.emission.coordinates.null).max() < 1e-12


def test_progress_is_the_number_of_iterations(text, monkeypatch) -> None:
    bars: list[Progress] = []

    @contextmanager
    def watched(description: str, total: float, unit: str) -> Iterator[Progress]:
        bars.append(Progress(description, total, unit))
        yield bars[-1]

    monkeypatch.setattr(fit, "progress", watched)
    sentences = [[WORDS[i] for i in line] for line in text[:1000].reshape(-1, 10)]
    trellis.train(sentences, family="lds", dim=3, blocks=3, epochs=2)
    assert [(bar.done, bar.total) for bar in bars] == [(2, 2)]
