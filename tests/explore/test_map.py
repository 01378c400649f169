"""The map of states: similar states are near each other, classes stay together; what is kept on disk is checked."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corpora import hmm
from trellis.emissions import Partition
from trellis.explore import kept, layout, snapshot
from trellis.explore.kept import FILE, Kept
from trellis.explore.layout import MOST_CENTRES, Layout, clusters, in_disc, place_states, principal, restored
from trellis.explore.offline import PACKED
from trellis.explore.packed import LEVELS, NEVER, PER_NAT, Links, StateTables, fitting, packed
from trellis.explore.views import encoded, views_of
from trellis.families.hmm import normalisers, state_tables, state_views
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.state_views import StateViews
from trellis.storage import load_tensors, save_tensors

EXACT = 1e-5
BUDGET = 60_000
STORED = 0.006  # relative error of stored probabilities


def blobs(groups: int, members: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in well separated groups."""
    rng = np.random.default_rng(seed)
    centres = 20 * rng.standard_normal((groups, 8))
    labels = np.repeat(np.arange(groups), members)
    return centres[labels] + rng.standard_normal((groups * members, 8)), labels


@pytest.mark.parametrize("groups", [1, 3, 20])
def test_states_surround_the_centre_of_their_class(groups: int) -> None:
    vectors, labels = blobs(groups, 10)
    found = place_states(vectors, labels)
    distance = np.linalg.norm(found.points[:, None] - found.centres, axis=-1)
    assert (distance.argmin(1) == labels).all()
    assert np.abs(found.points).max() == pytest.approx(1.0, abs=EXACT)


def test_without_classes_similar_states_are_grouped() -> None:
    vectors, labels = blobs(6, 12)
    found = place_states(vectors)
    assert len(found.centres) == 6
    same = labels[:, None] == labels
    assert ((found.groups[:, None] == found.groups) == same).all()
    distance = np.linalg.norm(found.points[:, None] - found.points, axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(1)] == labels).all()


def test_many_classes_are_placed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_CENTRES", 40)
    vectors, _ = blobs(10, 8)
    found = place_states(vectors, np.arange(80))
    assert len(np.unique(found.points.round(6), axis=0)) == 80
    assert MOST_CENTRES > 40


@pytest.mark.parametrize("states", [1, 2, 3, 13])
def test_identical_states_are_placed(states: int) -> None:
    found = place_states(np.ones((states, 4)))
    assert found.points.shape == (states, 2)
    assert np.isfinite(found.points).all()


def test_principal_components_keep_distances() -> None:
    vectors = np.random.default_rng(0).standard_normal((30, 5))
    found = principal(vectors, 5)
    np.testing.assert_allclose(found @ found.T, (vectors - vectors.mean(0)) @ (vectors - vectors.mean(0)).T, atol=1e-9)
    assert (np.diff(found.var(0)) <= 0).all()
    assert principal(vectors[:, :1], 2).shape == (30, 2)


def test_a_disc_is_filled() -> None:
    radius = np.hypot(*in_disc(np.random.default_rng(0).standard_normal((500, 2))).T)
    assert radius.max() <= 1
    assert (radius < np.sqrt(0.5)).mean() == pytest.approx(0.5, abs=0.01)  # half of the area, half of the points


def test_groups_are_numbered_by_their_first_member() -> None:
    vectors, _ = blobs(4, 10)
    found = clusters(vectors, 4)
    assert found[np.sort(np.unique(found, return_index=True)[1])].tolist() == [0, 1, 2, 3]


def test_the_map_is_kept_beside_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state_views, "WORTH_KEEPING", 0.0)
    config = HMMConfig(states=6, params="neural", dim=4)
    model = HMM.build(hmm().vocab, config, False, 0, None).requires_grad_(False)
    first = views_of(model, folder=tmp_path)
    first.background(lambda work: work())
    monkeypatch.setattr(state_views, "place_states", None)  # it is read, not computed again
    second = views_of(model, folder=tmp_path)
    second.background(lambda work: work())
    assert second.map() == first.map()  # type: ignore[attr-defined]


def test_a_file_of_another_model_or_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    own, other = Kept(hmm(seed=0), tmp_path), Kept(hmm(seed=1), tmp_path)
    assert own.load() == {}
    own.save({"points": np.zeros((3, 2), np.float32)})
    assert list(own.load()) == ["points"]
    assert other.load() == {}
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-1])
    assert Kept(hmm(seed=0), tmp_path).load() == {}
    file.write_bytes(b"not a file of tensors")
    assert Kept(hmm(seed=0), tmp_path).load() == {}
    save_tensors(file, {"points": np.zeros(3)}, {"format": kept.FORMAT, "schema": "99", "model": own.fingerprint})
    assert own.load() == {}
    Kept(hmm(), None).save({})  # nowhere


def test_unsound_layouts_are_ignored() -> None:
    points, centres = np.zeros((3, 2), np.float32), np.zeros((1, 2), np.float32)
    groups = np.zeros(3, np.int64)
    good = Layout(points, centres, groups)
    assert restored(good._asdict(), 3) is not None
    for bad in (
        good._replace(points=points[:2]), good._replace(points=points * np.nan), good._replace(groups=groups + 1),
        good._replace(groups=groups - 1), good._replace(groups=groups.astype(np.float32)),
        good._replace(centres=centres[0]), good._replace(points=groups),
    ):  # fmt: skip
        assert restored(bad._asdict(), 3) is None
    assert restored({"points": points}, 3) is None


def large_model() -> HMM:
    config = HMMConfig(states=70, params="neural", dim=4, emission="brown", classes=2)
    support = Partition(torch.tensor([0, 0, 0, 1, 1, 1, 1]), [35, 35])
    return HMM.build(hmm().vocab, config, False, 0, support).requires_grad_(False)


def test_kept_normalisers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisers, "LARGE", 70)
    whole = normalisers.lazy_transition(large_model())
    assert whole is not None
    right = whole.log_norm.numpy()
    for given, used in ((right, True), (right + 1, False), (right[:-1], False), (right * np.nan, False)):
        transition = normalisers.lazy_transition(large_model())
        assert transition is not None
        normalisers.use_norms(transition, given)
        assert (len(transition.missing) == 0) == used


def test_a_sentence_needs_few_normalisers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = large_model()
    whole.visits = torch.full((70,), 1 / 70)
    exact = views_of(whole)
    monkeypatch.setattr(normalisers, "LARGE", 70)
    monkeypatch.setattr(state_views, "WORTH_KEEPING", 0.0)
    model = large_model()
    model.visits = torch.full((70,), 1 / 70)
    vocab = model.vocab
    found = views_of(model, folder=tmp_path)
    text = vocab.words[1]  # of the class of <eos>
    assert vocab.words[vocab.eos] != text
    assert_same(found.smooth(text), exact.smooth(text))
    assert 0 < len(found.lazy.missing) < 70
    assert found.state(3)["incoming"] is None
    found.background(lambda work: work())
    assert len(found.lazy.missing) == 0
    assert_same(found.state(3), exact.state(3))
    assert "norms" in load_tensors(tmp_path / FILE, checked=True)


def assert_same(found: Any, wanted: Any) -> None:
    """The same numbers up to rounding, and the same texts."""
    assert json.loads(encoded(found, 3)[1]) == json.loads(encoded(wanted, 3)[1])


def test_a_snapshot_has_the_answers_of_the_server_within_its_budget() -> None:
    model, sentence = hmm(states=5), "the cat sees"
    table = snapshot(model, [sentence, "the ___ sees"], BUDGET)
    assert len(json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()) <= BUDGET
    found = views_of(model)
    for key in ('POST /api/smooth {"model":0,"text":"the cat sees"}', "GET /api/about", PACKED,
                'POST /api/infill {"model":0,"text":"the ___ sees","top":10,"complete":true}'):  # fmt: skip
        assert key in table
    shown = table['POST /api/score {"model":0,"text":"the cat sees"}']
    assert shown["log_prob"] == pytest.approx(found.score(sentence)["log_prob"], rel=1e-4)  # type: ignore[attr-defined]
    less = snapshot(model, [sentence], BUDGET // 10)
    assert len(json.dumps(less, ensure_ascii=False, separators=(",", ":")).encode()) <= BUDGET // 10
    assert len(json.dumps(less)) < len(json.dumps(table))


def test_packed_states_are_those_of_the_server() -> None:
    model = hmm(states=5)
    states = snapshot(model, ["the cat"], BUDGET)[PACKED]
    server = views_of(model)
    server.background(lambda work: work())

    def prob(stored: int) -> float:
        return 0.0 if stored >= NEVER else float(np.exp(-stored / PER_NAT))

    for z in range(5):
        wanted = server.state(z)  # type: ignore[attr-defined]
        top, n = states["top"], states["top"]["n"]
        here = slice(z * n, z * n + n)
        words = {
            states["words"][i]: prob(q) for i, q in zip(top["ids"][here], top["probs"][here], strict=True) if i >= 0
        }
        assert words == pytest.approx({one["word"]: one["prob"] for one in wanted["words"]}, rel=STORED, abs=1e-20)
        assert prob(states["occupancy"][z]) == pytest.approx(wanted["occupancy"], rel=STORED)
        for name in ("outgoing", "incoming"):
            n = states[name]["n"]
            here = slice(z * n, z * n + n)
            pairs = zip(states[name]["ids"][here], states[name]["values"][here], strict=True)
            found = {i: prob(q) for i, q in pairs if i >= 0}
            assert found == pytest.approx({one["id"]: one["prob"] for one in wanted[name]}, rel=STORED, abs=1e-9)


def test_links_hold_one_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    views, states = StateViews(hmm(states=700)), 700
    assert views.best_words.shape == views.occupancy.shape == (states,)  # computed once, and kept
    monkeypatch.setattr(state_tables, "ROWS", 32)
    tracemalloc.start()
    try:
        state_tables.links_of(views)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1.0 < peak / (4 * states**2) < 1.5  # in float32


@pytest.mark.parametrize("states", [10, 2_048, 8_192, 65_536])
def test_all_states_fit_into_a_report(states: int) -> None:
    room, rng = 3_400_000, np.random.default_rng(0)
    levels = fitting(states, room)
    links = Links(rng.integers(states, size=(states, 12)), rng.random((states, 12))) if states <= 8_192 else None
    probs = rng.dirichlet(np.ones(60), states)
    tables = StateTables(
        rng.integers(10_000, size=(states, 60)), probs, np.full(10_000, 1e-4), rng.dirichlet(np.ones(states)),
        rng.uniform(-1, 1, (states, 2)), rng.integers(128, size=states), [],
        None if links is None else dict.fromkeys(("outgoing", "incoming", "neighbours"), links), [[]] * states,
    )  # fmt: skip
    found = packed(tables, [f"word{i}" for i in range(10_000)], room)
    assert len(json.dumps(found, separators=(",", ":"))) <= room
    assert len(found["x"]) == states
    assert ("outgoing" in found) == (links is not None)
    assert bool(found["left_out"]) == (levels[0] != LEVELS[0])


def test_the_same_model_gives_the_same_snapshot() -> None:
    model = hmm(states=5)
    assert snapshot(model, ["the cat"], BUDGET) == snapshot(model, ["the cat"], BUDGET)


def test_files_of_tensors_round_trip(tmp_path: Path) -> None:
    own = Kept(hmm(), tmp_path)
    own.save({"norms": np.arange(3.0)})
    assert load_tensors(tmp_path / FILE, checked=True)["norms"].tolist() == [0, 1, 2]
