"""EM: monotone, resumable, and the same whether the text is cut or not."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from corpora import hmm, split
from trellis import distributed
from trellis.config import TrainConfig
from trellis.corpus.batches import Sentences, Streams
from trellis.errors import TrellisError
from trellis.families.hmm.parameters import TableParams
from trellis.inference import discrete
from trellis.learning.em import EMLearner, Running, StepwiseEMLearner
from trellis.parts import Prior
from trellis.storage import load_tensors
from trellis.tasks.lm import evaluate
from trellis.testing.close import assert_close
from trellis.training.checkpoint import CARRIED, save_checkpoint
from trellis.training.state import TrainState
from trellis.types import Belief, Counts

CONFIG = replace(TrainConfig(), pseudocount=0.0)
SAME = 1e-12  # relative, float64
FALL = {torch.float32: 1e-4, torch.float64: 1e-9}  # nats that rounding may take


def epoch(learner: EMLearner, batches) -> float:
    total = sum(float(learner.step(batch).log_likelihood) for batch in batches)
    learner.end_epoch()
    return total


def test_the_likelihood_never_falls() -> None:
    model, text = hmm(states=4), split()
    learner = EMLearner(model, CONFIG)
    totals = [epoch(learner, Sentences(text, 64, shuffle=False)) for _ in range(15)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(totals))
    assert totals[-1] > totals[0] + 1
    assert evaluate(model, Sentences(text, 64)).log_likelihood >= totals[-1] - 1e-9


def test_every_epoch_counts_anew() -> None:
    """Each epoch maximises the expected counts of its own parameters alone."""
    batches = list(Sentences(split(), 64, shuffle=False))
    learner, by_hand = (EMLearner(hmm(states=4), CONFIG) for _ in range(2))
    for _ in range(2):
        epoch(learner, batches)
        counts = [by_hand.model.counts(batch, None)[0] for batch in batches]
        by_hand.params.maximise(functools.reduce(Counts.plus, counts), by_hand.prior)
    for ours, theirs in zip(learner.params.state_dict().values(), by_hand.params.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert learner.totals is None


def test_a_stream_in_windows_counts_every_transition() -> None:
    """Windows carry the belief forward but cannot look ahead, so only the number of transitions must agree."""
    text = split()
    learner = EMLearner(hmm(carry=True), CONFIG)
    for batch in Streams(text, 1, 7):
        learner.step(batch)
    assert learner.totals is not None
    assert float(learner.totals.transition.sum()) == pytest.approx(text.tokens.size - 1)
    assert float(learner.totals.start.sum()) == pytest.approx(1.0)
    assert float(learner.totals.emission.sum()) == pytest.approx(text.tokens.size)


def test_batches_without_a_beginning_leave_the_start_alone() -> None:
    learner = StepwiseEMLearner(hmm(carry=True), replace(CONFIG, pseudocount=0.001))
    batches = list(Streams(split(), 4, 8))
    learner.step(batches[0])
    assert learner.totals is not None
    start = learner.totals.start.clone()
    for batch in batches[1:]:
        learner.step(batch)
    assert torch.equal(learner.totals.start, start)


def test_an_epoch_of_em_replaces_the_parameters() -> None:
    assert EMLearner(hmm(), CONFIG).rate == 1.0  # the table of metrics shows it


def test_a_checkpoint_of_another_model_is_refused() -> None:
    learner = EMLearner(hmm(), CONFIG)
    with pytest.raises(TrellisError, match="does not match"):
        EMLearner(hmm(states=4), CONFIG).restore(learner.state_tensors(), learner.state_json())
    stepwise = StepwiseEMLearner(hmm(), CONFIG)
    for usual in ({}, {"usual": "many"}):
        with pytest.raises(TrellisError, match="does not match"):
            stepwise.restore(
                stepwise.state_tensors(), {k: v for k, v in stepwise.state_json().items() if k != "usual"} | usual
            )


def test_stepwise_em_learns() -> None:
    model, text = hmm(states=4), split()
    before = evaluate(model, Sentences(text, 64)).log_likelihood
    learner = StepwiseEMLearner(model, replace(CONFIG, pseudocount=0.001))
    for _ in range(5):
        epoch(learner, Sentences(text, 64))
    assert evaluate(model, Sentences(text, 64)).log_likelihood > before
    assert 0 < learner.rate < 1


def test_two_steps_of_stepwise_em_by_hand() -> None:
    """Statistics per token, of which the second batch weighs 3^-power; pseudocounts are per token too."""
    config, (first, second) = replace(CONFIG, pseudocount=0.5, em_power=0.7), list(Sentences(split(), 64))[:2]
    learner, by_hand = (StepwiseEMLearner(hmm(), config) for _ in range(2))
    one = [count / int(first.lengths.sum()) for count in by_hand.model.counts(first, None)[0]]
    by_hand.params.maximise(Counts(*one), Prior.same(0.5 / int(first.lengths.sum())))
    two = [count / int(second.lengths.sum()) for count in by_hand.model.counts(second, None)[0]]
    mixed = Counts(*((1 - 3**-0.7) * a + 3**-0.7 * b for a, b in zip(one, two, strict=True)))
    by_hand.params.maximise(mixed, Prior.same(0.5 / int(second.lengths.sum())))
    for batch in (first, second):
        learner.step(batch)
    assert learner.totals is not None
    ours, theirs = [*learner.totals, *learner.params.parameters()], [*mixed, *by_hand.params.parameters()]
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=SAME, atol=0)


@pytest.mark.parametrize("kind", [EMLearner, StepwiseEMLearner])
def test_a_restored_learner_goes_on_to_the_same_bits(kind) -> None:
    batches = list(Streams(split(), 4, 8))
    straight = kind(hmm(carry=True), CONFIG)
    for batch in batches:
        straight.step(batch)
    first = kind(hmm(carry=True), CONFIG)
    for batch in batches[:3]:
        first.step(batch)
    saved = {name: value.clone() for name, value in first.state_tensors().items()}
    second = kind(hmm(carry=True, seed=9), CONFIG)
    second.restore(saved, first.state_json())
    for batch in batches[3:]:
        second.step(batch)
    for learner in (straight, second):
        learner.end_epoch()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.parametrize("kind", [EMLearner, StepwiseEMLearner])
def test_a_learner_saved_before_its_first_step_has_the_rows_of_all_processes(
    kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that have resumed, and are stopped at once."""
    monkeypatch.setattr(distributed, "from_all", lambda own: [own, {name: 2 * rows for name, rows in own.items()}])
    batches = Streams(split(), 4, 8)
    learner, resumed = kind(hmm(carry=True), CONFIG), kind(hmm(carry=True), CONFIG)
    learner.step(next(iter(batches)))
    resumed.restore(learner.state_tensors(), learner.state_json())
    monkeypatch.setattr(distributed, "is_joined", lambda: True)
    save_checkpoint(tmp_path / "last", resumed, batches, TrainState())
    saved = load_tensors(tmp_path / "last")
    own = {name: rows for name, rows in learner.state_tensors().items() if name.startswith(CARRIED)}
    assert own
    for name, rows in own.items():
        torch.testing.assert_close(saved[name], torch.cat([rows, 2 * rows]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_a_short_text_learned_by_heart(seed: int, dtype: torch.dtype) -> None:
    """Without a pseudocount nearly all probabilities go to zero: no count may be negative, nothing may turn nan."""
    generator = torch.Generator().manual_seed(seed)
    params = TableParams(9, 7).to(dtype)
    tokens, lengths, reached = torch.randint(-1, 7, (1, 11), generator=generator), torch.tensor([11]), []
    with torch.no_grad():
        for weight in params.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        for _ in range(40):
            potentials, prior = params.parts().emission.potentials(tokens), Belief(params.parts().start.expand(1, -1))
            found, _ = discrete.counts(prior, params.parts().transition, potentials, lengths)
            assert all(bool((table >= 0).all()) for table in (found.start, found.transition, found.emission))
            reached.append(float(found.log_likelihood))
            params.maximise(found, Prior())
    assert all(later >= earlier - FALL[dtype] for earlier, later in itertools.pairwise(reached))


def test_the_pseudocounts_of_a_small_batch_do_not_outweigh_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, scales = StepwiseEMLearner(hmm(carry=True), CONFIG), []
    monkeypatch.setattr(
        learner.params, "maximise", lambda counts, prior: scales.append(float(counts.emission.sum())), raising=False
    )
    wide, narrow = next(iter(Streams(split(), 4, 16))), next(iter(Streams(split(), 1, 2)))
    for batch in (wide, narrow):
        learner.carried = None
        learner.step(batch)
    assert scales == pytest.approx([64.0, 16.0])  # not 2: a quarter of the first batch
    again = StepwiseEMLearner(hmm(carry=True), CONFIG)
    again.restore(learner.state_tensors(), learner.state_json())
    assert again.usual == 64


@pytest.mark.parametrize(("starts", "moves"), [(1.0, True), (0.5, True), (0.0, False)])
def test_starts_move_if_a_sequence_begins(starts: float, moves: bool) -> None:
    one = Counts(*(torch.ones(2, dtype=torch.float64) for _ in range(4)))
    begun = Running.absorb(None, one, 1.0, 0.5)
    more = one._replace(start=torch.tensor([starts, 0.0], dtype=torch.float64))
    found = Running.absorb(begun, more, 1.0, 0.5).mean
    rate = 3**-0.5
    expected = (1 - rate) + rate * more.start if moves else torch.ones(2, dtype=torch.float64)
    assert_close(found.start, expected)
