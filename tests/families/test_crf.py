"""The CRF beside enumeration and beside crfsuite, and its learners."""

from __future__ import annotations

import sys
from itertools import pairwise, product
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.crf import model
from trellis.families.crf.config import CRFTrainConfig
from trellis.families.crf.learning import (
    CURVATURE,
    PERIOD,
    Checkpoints,
    State,
    converged,
    copy_crfsuite,
    equal_curvature,
    sentences,
    train_crf,
)
from trellis.families.crf.model import CRF, Features, check_pairs, observed_pairs
from trellis.kernels import bags
from trellis.kernels.bags import Pairs
from trellis.learning.lbfgs import LBFGS

EXACT = 1e-10
ADAGRAD = 1e-8  # relative: torch adds 1e-10 to the root of the squares
ALIKE = 1e-6  # nats, of all sentences together
STEP, DIFFERENCES = 1e-6, 1e-7  # of central differences, and their error
PENALTY = 0.3
LABELS, ATTRIBUTES = 3, 12


def problem(seed: int = 0, count: int = 12, dense: int = 0, longest: int = 4) -> tuple[Features, Tensor]:
    """Sentences whose tokens have up to four attributes, some none."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    sizes = rng.integers(0, 5, lengths.sum())
    ids = torch.from_numpy(rng.integers(0, ATTRIBUTES, sizes.sum()).astype(np.int32))
    offsets = torch.from_numpy(np.append(0, np.cumsum(sizes)))
    vectors = torch.from_numpy(rng.normal(size=(len(sizes), dense)))
    gold = torch.from_numpy((rng.integers(0, LABELS, len(sizes)) + np.arange(len(sizes))) % LABELS)
    return Features(ids, offsets, vectors, torch.from_numpy(lengths)), gold


def random_crf(dense: int = 0, pairs: Pairs | None = None) -> CRF:
    crf = CRF(LABELS, ATTRIBUTES, dense, torch.float64, pairs)
    generator = torch.Generator().manual_seed(1)
    for weight in crf.parameters():
        torch.nn.init.normal_(weight, generator=generator)
    return crf


def table_of(crf: CRF) -> Tensor:
    """The weights of attributes as a dense table, zero for pairs without one."""
    table = torch.zeros(ATTRIBUTES, LABELS, dtype=torch.float64)
    for attribute, (begin, end) in enumerate(pairwise(crf.first.tolist())):
        for pair in range(begin, end):
            table[attribute, crf.labels[pair]] = crf.attribute.detach()[pair]
    return table


def enumerate_paths(crf: CRF, features: Features) -> list[dict[tuple[int, ...], float]]:
    """The score of every path of every sentence, written down term by term."""
    bounds, table = features.offsets.tolist(), table_of(crf)
    scores = [
        sum((table[i] for i in features.ids[begin:end]), torch.zeros(LABELS).double()) + features.dense[t] @ crf.dense
        for t, (begin, end) in enumerate(pairwise(bounds))
    ]
    tables, first = [], 0
    for length in features.lengths.tolist():
        steps = scores[first : first + length]
        tables.append({
            path: float(
                sum(step[y] for step, y in zip(steps, path, strict=True))
                + sum(crf.transition[a, b] for a, b in pairwise(path))
            )
            for path in product(range(LABELS), repeat=length)
        })  # fmt: skip
        first += length
    return tables


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dense", [0, 2])
@torch.no_grad()
def test_every_quantity_is_that_of_enumeration(dense: int, sparse: bool) -> None:
    features, gold = problem(dense=dense)
    crf = random_crf(dense, observed_pairs(features, gold, ATTRIBUTES, LABELS) if sparse else None)
    likelihoods, marginals = crf.log_likelihood(features, gold), crf.marginals(features)
    labels, first = crf.best_labels(features).tolist(), 0
    for sentence, table in enumerate(enumerate_paths(crf, features)):
        span = slice(first, first + int(features.lengths[sentence]))
        scores = np.array(list(table.values()))
        weights = np.exp(scores - np.logaddexp.reduce(scores))
        wanted = table[tuple(gold[span].tolist())] - np.logaddexp.reduce(scores)
        assert float(likelihoods[sentence]) == pytest.approx(wanted, abs=EXACT)
        assert tuple(labels[span]) == max(table, key=lambda path, t=table: t[path])
        expected = np.zeros((span.stop - span.start, LABELS))
        for path, weight in zip(table, weights, strict=True):
            expected[np.arange(len(path)), path] += weight
        assert np.abs(marginals[span].numpy() - expected).max() < EXACT
        first = span.stop


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_gradient_is_that_of_finite_differences(
    compiled: bool, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and bags.kernels() is None:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(bags, "compiled", lambda values: compiled)
    monkeypatch.setattr(model, "TOKENS", 10)
    monkeypatch.setattr(bags, "SHARE", 3)
    features, gold = problem(dense=2)
    crf = random_crf(2, observed_pairs(features, gold, ATTRIBUTES, LABELS) if sparse else None)
    value = crf.backward(features, gold, PENALTY)
    assert value == pytest.approx(loss(crf, features, gold), abs=EXACT)
    for weight in crf.parameters():
        slopes = cast(Tensor, weight.grad).clone()
        for i in range(weight.numel()):
            flat = weight.data.view(-1)
            sides = []
            for side in (STEP, -STEP):
                flat[i] += side
                sides.append(loss(crf, features, gold))
                flat[i] -= side
            assert float(slopes.view(-1)[i]) == pytest.approx((sides[0] - sides[1]) / (2 * STEP), abs=DIFFERENCES)


def loss(crf: CRF, features: Features, gold: Tensor, l2: float = PENALTY) -> float:
    """-log p(y | x) + l2 |w|^2."""
    penalty = sum(float(weight.detach().square().sum()) for weight in crf.parameters())
    return l2 * penalty - float(crf.log_likelihood(features, gold).sum())


def test_chunks_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "TOKENS", 10)
    features, _ = problem(count=9, dense=2)
    parts = [some for some, _ in features.chunks()]
    assert len(parts) > 1
    assert all(len(part.lengths) * int(part.lengths.max()) <= model.TOKENS for part in parts)
    for part, following in pairwise(parts):  # which has no room for one more
        longest = max(int(part.lengths.max()), int(following.lengths[0]))
        assert (len(part.lengths) + 1) * longest > model.TOKENS
    for name in ("ids", "dense", "lengths"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(features, name))


def test_observed_pairs_are_those_of_the_text() -> None:
    features, gold = problem()
    pairs = observed_pairs(features, gold, ATTRIBUTES, LABELS)
    listed = {
        (attribute, int(label))
        for attribute, (begin, end) in enumerate(pairwise(pairs.first.tolist()))
        for label in pairs.labels[begin:end]
    }
    seen = {
        (int(attribute), int(gold[t]))
        for t, (begin, end) in enumerate(pairwise(features.offsets.tolist()))
        for attribute in features.ids[begin:end]
    }
    assert listed == seen
    assert len(pairs.labels) == len(seen)


def test_some_of_the_sentences() -> None:
    (features, gold), crf = problem(dense=2), random_crf(2)
    chosen = torch.tensor([5, 0, 7])
    part, tokens = features.take(chosen)
    whole = crf.log_likelihood(features, gold)[chosen]
    assert torch.allclose(crf.log_likelihood(part, gold[tokens]), whole, atol=EXACT, rtol=0)


def test_likelihood_and_optimum_are_crfsuites(tmp_path: Path) -> None:
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    features, gold = problem(count=40, longest=6)
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    every = {"feature.possible_states": True, "feature.possible_transitions": True}
    trainer.set_params({"c1": 0.0, "c2": 0.4, "epsilon": 1e-8, "delta": 1e-12, "max_iterations": 1000} | every)
    rows = list(sentences(features, gold))
    for attributes, labels in rows:
        trainer.append(attributes, labels)
    trainer.train(str(tmp_path / "model"))
    theirs = CRF(LABELS, ATTRIBUTES, dtype=torch.float64)
    copy_crfsuite(theirs, tmp_path / "model")
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model"))
    told = []
    for attributes, labels in rows:
        tagger.set(attributes)
        told.append(np.log(tagger.probability(labels)))
    with torch.no_grad():
        ours = theirs.log_likelihood(features, gold).numpy()
        assert np.abs(ours - np.array(told)).max() < ALIKE
        best = [str(label) for label in theirs.best_labels(features).tolist()]
    assert best == [label for attributes, _ in rows for label in tagger.tag(attributes)]
    alone = CRF(LABELS, ATTRIBUTES, dtype=torch.float64)
    train_crf(alone, features, gold, CRFTrainConfig("lbfgs", l2=0.4, tolerance=0.0, iterations=60))
    assert loss(alone, features, gold, 0.4) == pytest.approx(loss(theirs, features, gold, 0.4), abs=ALIKE)


@pytest.mark.parametrize(("learner", "iterations"), [("lbfgs", 30), ("adagrad", 60), ("crfsuite", 50)])
def test_learners_find_labels_that_follow_from_attributes(learner: str, iterations: int) -> None:
    if learner == "crfsuite":
        pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    gold = torch.arange(60) % LABELS
    features = Features(gold.int(), torch.arange(61), torch.zeros(60, 0), torch.full((12,), 5))
    config = CRFTrainConfig(learner, l2=0.01, iterations=iterations, batch=4)
    crf = train_crf(CRF(LABELS, ATTRIBUTES), features, gold, config)
    assert torch.equal(crf.best_labels(features), gold)


def test_the_batches_of_adagrad_share_the_penalty() -> None:
    """One label leaves nothing to learn, so that only the penalty moves the weights: 8 of 12 sentences, then 4."""
    features, gold = problem()
    crf = CRF(1, ATTRIBUTES, dtype=torch.float64)
    for weight in crf.parameters():
        torch.nn.init.ones_(weight)
    config = CRFTrainConfig("adagrad", l2=0.6, iterations=1, batch=8)
    with patch.object(CRF, "backward", autospec=True, side_effect=CRF.backward) as steps:
        train_crf(crf, features, torch.zeros_like(gold), config)
    assert sum(step.args[-1] for step in steps.call_args_list) == pytest.approx(config.l2)
    after_one = 1 - config.lr
    slopes = 2 * config.l2 * 8 / 12, 2 * config.l2 * 4 / 12 * after_one
    expected = after_one - config.lr * slopes[1] / np.hypot(*slopes)
    for weight in crf.parameters():
        torch.testing.assert_close(weight, torch.full_like(weight, expected), rtol=ADAGRAD, atol=0)


def test_training_ends_when_the_loss_hardly_decreases() -> None:
    before, after = 3.0, 2.0
    losses = [before] + [after] * PERIOD
    assert not converged(losses[:PERIOD], tolerance=1.0)
    assert not converged(losses, tolerance=0.4)
    assert converged(losses, tolerance=0.6)
    assert converged([*losses, after], tolerance=0.1)
    assert not converged([before] * PERIOD + [1.0], tolerance=1.0)  # a fraction of the last loss
    assert converged([before] * PERIOD + [1.0], tolerance=2.1)


def test_real_valued_features_are_learned() -> None:
    gold = torch.arange(60) % LABELS
    vectors = torch.eye(LABELS)[gold] + 0.1
    nothing = torch.zeros(0, dtype=torch.int32)
    features = Features(nothing, torch.zeros(61, dtype=torch.int64), vectors, torch.full((12,), 5))
    crf = train_crf(CRF(LABELS, 1, LABELS), features, gold, CRFTrainConfig(l2=0.01))
    assert torch.equal(crf.best_labels(features), gold)
    with pytest.raises(TrellisError, match="only sparse features"):
        train_crf(CRF(LABELS, 1, LABELS), features, gold, CRFTrainConfig("crfsuite"))


def test_what_cannot_be_trained_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    features, gold = problem()
    with pytest.raises(TrellisError, match="did you mean"):
        train_crf(CRF(LABELS, ATTRIBUTES), features, gold, CRFTrainConfig("lbfg"))
    with pytest.raises(TrellisError, match=r'only train\.learner = "crfsuite" supports'):
        train_crf(CRF(LABELS, ATTRIBUTES), features, gold, CRFTrainConfig(l1=0.1))
    monkeypatch.setitem(sys.modules, "pycrfsuite", None)
    with pytest.raises(TrellisError, match="needs python-crfsuite"):
        train_crf(CRF(LABELS, ATTRIBUTES), features, gold, CRFTrainConfig("crfsuite"))


def test_training_begins_at_the_weights_of_the_model() -> None:
    """Whatever the coordinates of L-BFGS are, the weights stay as they were if no iteration is made."""
    features, gold = problem(dense=2)
    crf, before = random_crf(dense=2), random_crf(dense=2).state_dict()
    with patch.object(LBFGS, "advance", return_value=False):
        train_crf(crf, features, gold, CRFTrainConfig("lbfgs", l2=PENALTY))
    for name, weight in crf.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=EXACT, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_says_the_same() -> None:
    (features, gold), crf = problem(dense=2), random_crf(2)
    with torch.no_grad():
        here = crf.log_likelihood(features, gold), crf.best_labels(features)
        crf.cuda()
        there = crf.log_likelihood(features.to("cuda"), gold.cuda()), crf.best_labels(features.to("cuda"))
    assert torch.allclose(here[0], there[0].cpu(), atol=EXACT, rtol=0)
    assert torch.equal(here[1], there[1].cpu())
    trained = train_crf(CRF(LABELS, ATTRIBUTES, 2), features._replace(dense=features.dense.float()), gold,
                        CRFTrainConfig(), "cuda")  # fmt: skip
    assert trained.attribute.device.type == "cpu"


def test_the_scale_of_every_weight_is_that_of_its_curvature() -> None:
    features, _ = problem(dense=2)
    crf, tokens = random_crf(dense=2), len(features.offsets) - 1
    seen = np.bincount(features.ids, minlength=ATTRIBUTES)
    squares = (features.dense.numpy() ** 2).sum(0)
    sums = [*np.repeat(seen, LABELS), *np.repeat(squares, LABELS), *[tokens / LABELS] * LABELS**2]
    expected = (2 * PENALTY + CURVATURE * np.array(sums)) ** -0.5
    np.testing.assert_allclose(equal_curvature(crf, features, PENALTY).numpy(), expected, rtol=EXACT)


def test_pairs_from_a_file_are_checked() -> None:
    labels = torch.tensor([0, 1, 1], dtype=torch.int32)
    check_pairs(Pairs(torch.tensor([0, 2, 2, 3]), labels), 3, 2)  # an attribute may have no pair
    for first in ([0, 2, 1, 3], [1, 2, 2, 3], [0, 1, 2, 2], [0, 3]):
        with pytest.raises(ValueError):  # noqa: PT011
            check_pairs(Pairs(torch.tensor(first), labels), 3, 2)
    with pytest.raises(ValueError, match="do not match the labels"):
        check_pairs(Pairs(torch.zeros(1, dtype=torch.int64), labels[:0]), 0, 0)


def test_sentences_that_fill_a_chunk_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "TOKENS", 10)
    lengths = torch.tensor([5, 5, 5, 20, 1])
    tokens = int(lengths.sum())
    features = Features(
        torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens + 1), torch.zeros(tokens, 0), lengths
    )
    assert [some.lengths.tolist() for some, _ in features.chunks()] == [[5, 5], [5], [20], [1]]


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, 0), (1e-9, 2), (1e9, 0)])
def test_checkpoints_are_saved_from_time_to_time(seconds: float, saved: int) -> None:
    states = list[State]()
    checkpoints = Checkpoints(states.append, seconds)
    for number in range(2):
        checkpoints.offer(lambda number=number: State({}, {"number": number}))
    assert [state.json["number"] for state in states] == list(range(saved))
