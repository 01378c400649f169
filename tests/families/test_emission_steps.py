"""Steps on the emissions of a factorial HMM: each raises what it climbs, and scaling ends where the counts agree."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from corpora import fhmm, split
from trellis.corpus.batches import Sentences
from trellis.errors import TrellisError
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.emission_steps import Seen, climb, guess_visits, scale
from trellis.families.factorial.loglinear import emission_slope
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner
from trellis.tasks.lm import evaluate
from trellis.testing.close import assert_close

ROUNDING, AGREEMENT = 1e-9, 1e-4


def some_tokens(model: FHMM) -> Seen:
    """A batch with its mean field; the corpus is the batch itself."""
    batch = next(iter(Sentences(split(), 512)))
    seen = Seen.of(batch, model.infer(batch, sweeps=3).field)
    model.params.set_unigram((seen.words.bincount(minlength=len(model.vocab)) / len(seen.words)).clamp(min=1e-9).log())
    return seen


def part_of_bound(model: FHMM, seen: Seen) -> float:
    return float(emission_slope(model.params.emission(), *seen).value)


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 2, 2)])
def test_scaling_never_lowers_the_bound_and_ends_where_counts_agree(sizes: tuple[int, ...], bound: str) -> None:
    model = fhmm(sizes, bound)
    seen = some_tokens(model)
    visits = seen.visits(len(model.vocab)) / len(seen.words)
    values = [part_of_bound(model, seen)]
    for _ in range(400):
        scale(model.params, seen, visits, 0.0)
        values.append(part_of_bound(model, seen))
    assert all(after >= before - ROUNDING * abs(before) for before, after in itertools.pairwise(values))
    expected = emission_slope(model.params.emission(), *seen).expected / len(seen.words)
    assert_close(expected, visits, AGREEMENT)


def test_rare_words_are_drawn_towards_all_states() -> None:
    """A word never met has the shares of the layer; one met often keeps its own."""
    model = fhmm((3,))
    seen = some_tokens(model)
    visits = seen.visits(len(model.vocab)) / len(seen.words)
    visits[1] = 0.0
    for _ in range(50):
        scale(model.params, seen, visits, 1e-3)
    theta = model.params.theta().detach()
    spread = (theta - theta.mean(-1, keepdim=True)).std(-1)
    assert float(spread[1] - spread[1:].min()) == 0.0


@pytest.mark.parametrize("dim", [0, 2])
def test_lbfgs_climbs_and_a_stronger_pull_keeps_it_nearer(dim: int) -> None:
    moved = []
    for pull in (1e-3, 1.0):
        model = fhmm((2, 2), dim=dim)
        seen = some_tokens(model)
        before, theta = part_of_bound(model, seen), model.params.theta().detach().clone()
        climb(model, [p for n, p in model.named_parameters() if "words" in n], seen, 5, pull, near=True)
        assert part_of_bound(model, seen) > before
        moved.append(float((model.params.theta().detach() - theta).norm()))
    assert moved[1] < moved[0]


def test_the_first_guess_adds_up() -> None:
    guess = guess_visits(fhmm((2, 3)).params)
    assert_close(guess.sum(0), torch.tensor([1 / 2] * 2 + [1 / 3] * 3))


@pytest.mark.parametrize(("inner", "lr"), [("scaling", 0.0), ("adam", 0.05), ("lbfgs", 20.0)])
def test_every_kind_of_step_learns(inner: str, lr: float) -> None:
    model, text = fhmm((2, 2)), split()
    before = evaluate(model, Sentences(text, 64)).log_likelihood
    learner = StepwiseVariationalLearner(model, replace(FHMMTrainConfig(), inner=inner, lr=lr, sweeps=2))
    for batch in itertools.islice(itertools.cycle(Sentences(text, 64)), 40):
        learner.step(batch)
    assert evaluate(model, Sentences(text, 64)).log_likelihood > before + 5


@pytest.mark.parametrize(("inner", "dim", "says"), [("magic", 0, "train.inner"), ("scaling", 2, "table")])
def test_what_cannot_be(inner: str, dim: int, says: str) -> None:
    with pytest.raises(TrellisError, match=says):
        StepwiseVariationalLearner(fhmm((2, 2), dim=dim), replace(FHMMTrainConfig(), inner=inner))
