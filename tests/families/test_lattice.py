"""The trellis of a sentence: posteriors, steps and path agree with every path of the model; the picture shows them."""

from itertools import pairwise, product
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import trellis
from corpora import hmm
from running import run
from trellis.engines import with_gaps
from trellis.errors import TrellisError
from trellis.families.hmm import lattice
from trellis.families.hmm.lattice import sentence_trellis
from trellis.inference import lattice as lattices
from trellis.inference.lattice import solve
from trellis.kernels.mask import draw_mask
from trellis.models.files import save_model
from trellis.report.markup import SVG
from trellis.report.trellis import FAINTEST, draw_trellis
from trellis.testing.oracle import Paths
from trellis.testing.problems import random_problem
from trellis.transitions import Softmax, pieces

EXACT = 1e-9
SENTENCE = "the cat sees"


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "WORTH", 0.0)


def test_it_agrees_with_every_path(everything: None) -> None:
    model = hmm().double()
    found = sentence_trellis(model, SENTENCE)
    with torch.no_grad():
        start, transition, emission = model.parts()
        tokens = model.encode_line(SENTENCE, eos=True)[0]
        matrix, potentials = transition.dense().numpy(), emission.dense().exp()[tokens].numpy()
    paths = Paths(start.numpy(), np.broadcast_to(matrix, (len(tokens) - 1, *matrix.shape)), potentials)
    words = np.argsort(-emission.dense().detach().numpy().T, -1, kind="stable")[:, :3]
    order = [found.names.index(", ".join(model.vocab.decode(row.tolist()))) for row in words]
    np.testing.assert_allclose(found.posterior[:, order], paths.smoothed(), rtol=0, atol=EXACT)
    np.testing.assert_allclose(found.steps[:, order][:, :, order], paths.pairs(), rtol=0, atol=EXACT)
    every = product(range(len(matrix)), repeat=len(tokens))
    assert tuple(order.index(z) for z in found.path) == max(every, key=lambda path: paths.weight(np.array(path)))


def test_states_without_weight_have_no_row() -> None:
    found = sentence_trellis(hmm().double(), SENTENCE)
    assert (found.posterior.max(0) >= lattice.WORTH).all()
    assert found.steps.shape == (3, len(found.names), len(found.names))


def test_the_picture_has_a_circle_for_each_probable_state(tmp_path: Path) -> None:
    model = hmm()
    found = sentence_trellis(model, SENTENCE)
    tree = ElementTree.fromstring(str(draw_trellis(found, **SVG)))
    circles = [one.get("class") for one in tree.iter("{http://www.w3.org/2000/svg}circle")]
    assert circles.count("state") == int((found.posterior > FAINTEST).sum())
    assert circles.count("best") == len(found.path)
    save_model(tmp_path / "model.safetensors", model)
    assert run("draw", tmp_path, SENTENCE, "-o", tmp_path / "x.svg") == 0
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert run("draw", tmp_path, SENTENCE, "-o", tmp_path / "x.png") == 2
    assert run("draw", tmp_path, "", "-o", tmp_path / "x.svg") == 2


def test_from_python(tmp_path: Path) -> None:
    drawn = hmm().draw(SENTENCE)
    assert drawn.words == ["the", "cat", "sees", "<eos>"]
    assert drawn._repr_svg_().startswith("<svg")
    drawn.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == f"{drawn._repr_svg_()}\n"
    with pytest.raises(TrellisError, match=r"Cannot write x\.png: pictures are SVG"):
        drawn.save("x.png")
    with pytest.raises(TrellisError, match=r"draw\(\) is for HMMs"):
        trellis.train(["a b", "b a"] * 20, family="bigram").model.draw("a b")


def softmax(states: int, rate: float) -> Softmax:
    """A random softmax, of which some transitions may be impossible."""
    queries, keys = torch.randn(2, states, 3, dtype=torch.float64)
    everything = torch.arange(states)
    return Softmax(queries, keys, draw_mask(0, torch.tensor(1), everything, everything, rate) if rate else None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [None, 0.0, 0.3])
def test_a_sentence_with_gaps_is_solved_over_live_states(
    seed: int, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    monkeypatch.setattr(pieces, "COLUMNS", 4)
    monkeypatch.setattr(with_gaps, "ENTRIES", 5)
    prior, transition, potentials, _ = random_problem(seed, 1, 5, 6, symbols=3, live=2, missing=0.4, shortest=5)
    transition = transition if rate is None else softmax(6, rate)
    weights = potentials.widen(6).gather()[0].exp().numpy()
    paths = Paths(prior.probs[0].numpy(), transition.dense().expand(4, 6, 6).numpy(), weights)
    told: list[float] = []
    found = with_gaps.solve(prior, transition, potentials, told.append)
    np.testing.assert_allclose(found.posterior, paths.smoothed(), atol=EXACT)
    np.testing.assert_allclose(found.filtered[-1], paths.smoothed()[-1], atol=EXACT)
    assert float(found.log_norms.sum()) == pytest.approx(np.log(paths.likelihood), abs=EXACT)
    assert float(found.log_prob) == pytest.approx(np.log(paths.weights.max()), abs=EXACT)
    assert paths.weight(found.path.numpy()) == pytest.approx(paths.weights.max(), abs=EXACT)
    gaps = (potentials.rows[0] < 0).tolist()
    between_gaps = sum(here and there for here, there in pairwise(gaps))
    assert len(told) == (0 if rate is None else 3 * between_gaps)
    assert told == sorted(told)
    assert not told or told[-1] == 1.0


def test_a_sentence_with_gaps_that_underflows_is_solved_over_all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    prior, transition, potentials, _ = random_problem(0, 1, 5, 6, symbols=3, live=2, missing=0.4, shortest=5)
    expected = solve(prior, transition, potentials)
    underflown = expected._replace(log_norms=torch.full((5,), -torch.inf))
    over_live_states = Mock(return_value=underflown)
    monkeypatch.setattr(with_gaps, "solve", over_live_states)
    for found, wanted in zip(solve(prior, transition, potentials), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=EXACT, atol=EXACT)
    over_live_states.assert_called_once()
    for options in ({"live": 2}, {"missing": 0.4}):  # without gaps; without live states
        solve(*random_problem(0, 1, 5, 6, symbols=3, shortest=5, **options)[:3])
    over_live_states.assert_called_once()


def test_the_most_relevant_states() -> None:
    posterior = torch.tensor([[0.3, 0.6, 0.1, 0.0], [0.9, 0.0, 0.1, 0.0], [0.1, 0.0, 0.0, 0.9]])
    nothing = torch.zeros(3)

    def states(path: list[int], most: int, worth: float) -> list[int]:
        found = lattices.Solved(nothing, posterior, posterior, torch.tensor(path), nothing[0])
        return lattices.most_relevant(found, most, worth).tolist()

    assert states([0, 0, 3], 4, 0.5) == [1, 0, 3]
    assert states([0, 0, 3], 2, 0.5) == [0, 3]
    assert states([0, 0, 3], 1, 2.0) == [0, 3]  # those of the path, always
    assert states([2, 2, 0], 4, 0.65) == [2, 0, 3]
    assert states([1, 3, 3], 2, 0.0) == [1, 3]


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_best_sums_do_not_underflow(spread: float) -> None:
    torch.manual_seed(0)
    matrix, scores = torch.rand(5, 7).pow(spread), spread * torch.randn(5)
    matrix[2] = 0.0
    scores[3] = -torch.inf
    exact = (matrix.double().log() + scores.double().unsqueeze(-1)).amax(0)
    torch.testing.assert_close(pieces.best_sums(matrix, scores).double(), exact, rtol=1e-6, atol=1e-4)
    nothing = pieces.best_sums(matrix, torch.full((5,), -torch.inf))
    assert bool((nothing == -torch.inf).all())
