"""Structured mean field against exact inference over joint states, and that against the list of all paths."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st

from layered import Layered, layered
from trellis.families.factorial import mean_field
from trellis.families.factorial.loglinear import LogLinear
from trellis.inference import discrete
from trellis.testing.close import assert_close
from trellis.testing.oracle import Paths
from trellis.transitions.kronecker import marginals

EXACT, ROUNDING, SAMPLING = 1e-10, 1e-9, 0.05
LARGEST_VARIATION = 0.1  # of the mean field from the exact marginals, total variation on average
SHAPES = st.sampled_from([(3,), (2, 2), (3, 1), (2, 3, 2), (3, 3, 3, 3)])


def infer(case: Layered, sweeps: int = 20, bound: str = "tilted", **more: object) -> mean_field.Inferred:
    return mean_field.infer(case.chains, case.emission, case.tokens, case.lengths, sweeps, bound, **more)


@given(SHAPES, st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.0, 0.3]), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_bound_is_above_the_truth_and_no_update_lowers_it(sizes, scale, missing, seed) -> None:
    case = layered(sizes, scale=scale, missing=missing, seed=seed)
    exact = discrete.log_likelihood(*case.joint())
    for bound in mean_field.BOUNDS:
        ascent = mean_field.Ascent(case.chains, case.emission, case.tokens, case.lengths, bound)
        values = [ascent.bound()]
        for m in list(range(len(sizes))) * 4:
            ascent.update(m)
            values.append(ascent.bound())
        assert (values[-1] <= exact + ROUNDING).all()
        for before, after in itertools.pairwise(values):
            assert (after >= before - ROUNDING).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_one_layer_is_the_hmm(missing: float) -> None:
    case = layered((5,), words=8, batch=4, steps=12, scale=2.0, missing=missing)
    result, exact = infer(case, sweeps=1), discrete.smooth(*case.joint())
    assert_close(result.bound, exact.log_likelihood, EXACT)
    assert_close(result.field.probs, exact.probs, EXACT)
    assert (infer(case, bound="jensen").bound < exact.log_likelihood - 1e-3).all()


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3, 3, 3)])
def test_the_marginals_are_near_the_exact_ones_and_the_tilted_nearer(sizes: tuple[int, ...]) -> None:
    case = layered(sizes, words=15, batch=2, steps=20)
    exact = marginals(discrete.smooth(*case.joint()).probs, sizes)
    variation = {
        b: float((infer(case, bound=b).field.probs - exact).abs().sum(-1).mean() / 2) for b in ("tilted", "jensen")
    }
    assert variation["tilted"] < variation["jensen"] < LARGEST_VARIATION
    assert (infer(case).bound > infer(case, bound="jensen").bound).all()


def test_the_joint_chain_against_all_paths() -> None:
    case = layered((2, 2), batch=2, steps=4)
    prior, transition, potentials, lengths = case.joint()
    posterior = discrete.smooth(prior, transition, potentials, lengths)
    weights = potentials.gather().exp().numpy()
    for b, length in enumerate(lengths.tolist()):
        matrices = transition.dense().numpy()[None].repeat(length - 1, 0)
        paths = Paths(prior.probs[b].numpy(), matrices, weights[b, :length])
        assert_close(posterior.log_likelihood[b].exp(), paths.likelihood)
        assert_close(posterior.probs[b, :length], paths.smoothed())


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = layered((2, 3), batch=7, missing=0.2)
    whole = infer(case)
    monkeypatch.setitem(mean_field.HELD, "cpu", 1)
    for one, other in zip(flat(whole), flat(infer(case)), strict=True):
        assert_close(one, other)


def flat(result: mean_field.Inferred) -> tuple[torch.Tensor, ...]:
    return result.bound, *result.field, result.potentials, result.log_norms


def test_a_warm_start_goes_on_where_it_was() -> None:
    case = layered((2, 3, 2), scale=2.0)
    assert_close(infer(case, 1, field=infer(case, 3).field).bound, infer(case, 4).bound)


def test_the_counts_are_those_of_the_chains() -> None:
    case = layered((2, 3))
    result = infer(case)
    counts = mean_field.expect(case.chains, result, case.lengths, case.emission.sizes)
    for count, size, probs in zip(counts, (2, 3), result.field.probs.split((2, 3), -1), strict=True):
        assert_close(count.start, probs[:, 0].sum(0))
        assert count.transition.shape == (size, size)
        assert float(count.transition.sum()) == pytest.approx(float((case.lengths - 1).sum()))


def test_sentences_of_one_word() -> None:
    case = layered((2, 3), batch=4, steps=1)
    result = infer(case)
    assert (result.bound <= discrete.log_likelihood(*case.joint()) + ROUNDING).all()
    for count in mean_field.expect(case.chains, result, case.lengths, case.emission.sizes):
        assert float(count.start.sum()) == pytest.approx(4)
        assert float(count.transition.sum()) == 0


def test_importance_sampling_tells_the_truth() -> None:
    case = layered((2, 3), steps=4)
    generator = torch.Generator().manual_seed(3)
    given_ = case.chains, case.emission, case.tokens, case.lengths, infer(case)
    sampled = mean_field.sampled_log_likelihood(*given_, samples=2000, generator=generator)
    assert_close(sampled, discrete.log_likelihood(*case.joint()), SAMPLING)


def single(case: Layered) -> Layered:
    """The same in float32."""
    chains = mean_field.Chains(*([value.float() for value in part] for part in case.chains))
    emission = LogLinear(case.emission.theta.float(), case.emission.bias.float(), case.emission.sizes)
    return case._replace(chains=chains, emission=emission)


def test_float32_agrees_with_float64() -> None:
    case = layered((3, 3, 3), words=50, steps=30, scale=2.0)
    assert_close(infer(single(case)).bound, infer(case).bound, 1e-4)


@pytest.mark.parametrize("layers", [5, 9])
def test_extreme_scores_in_float32_keep_the_bound_a_bound(layers: int) -> None:
    """Words that all layers first hold for impossible come back when a layer changes its mind."""
    case = layered((2,) * layers, words=30, steps=12, scale=12.0)
    bound, exact = infer(single(case)).bound, discrete.log_likelihood(*case.joint())
    assert (bound <= exact + 1e-3 * exact.abs()).all()
    assert (bound >= 3 * exact).all()
