"""Checks of HMM parameterisations: normalised parts, exact gradients, dropout, saving, and EM."""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.families.hmm.parameters import Draw, Dropout, Params, SavedParams, WordParams
from trellis.inference import discrete
from trellis.learning.base import Maximisable
from trellis.learning.em import expect
from trellis.parts import Parts, Prior
from trellis.testing.close import Check, assert_close, require, run_checks
from trellis.testing.oracle import Paths
from trellis.testing.problems import seeded
from trellis.types import Belief

BATCH, STEPS, RATE, NUDGE = 4, 6, 0.4, 1e-5
MOST_PATHS = 4096  # of the enumerated sequences
FALL = 1e-9  # nats that may be lost to rounding


def check_parameters(params: Params, words: Sequence[str] | None = None) -> None:
    """Check the parameters of an HMM, without changing them.

    Parameters
    ----------
    params
        Random parameters of 4 to 10 states. The kinds of dropout in `drops` are checked. For `SavedParams`, restoring
        from settings and tensors is checked. EM must never lower the likelihood of `Maximisable` parameters.
    words
        The vocabulary, if the parameterisation depends on the words.

    Examples
    --------
    >>> from trellis.families.hmm.parameters import TableParams
    >>> from trellis.testing import check_parameters
    >>> check_parameters(TableParams(4, 6))
    """
    case = Case(params, words)
    checks = [*CHECKS]
    checks += SAVED * isinstance(params, SavedParams) + NAMED * isinstance(params, WordParams)
    checks += MAXIMISABLE * isinstance(params, Maximisable)
    checks += [DROPS[kind] for kind in getattr(params, "drops", ()) if kind in DROPS and can_drop(params, kind)]
    run_checks(type(params).__name__, case, checks)


def can_drop(params: Params, kind: str) -> bool:
    """Whether this kind of dropout applies; state dropout needs classes, or states that can all emit every word."""
    return kind != "state" or params.partition is not None or params.support is None


class Case:
    """The parameters to check, in float64, and a text."""

    def __init__(self, params: Params, words: Sequence[str] | None) -> None:
        self.given = params
        self.num_words = params.parts().emission.num_symbols
        self.words = [*words] if words is not None else [f"w{i}" for i in range(self.num_words)]
        self.tokens = torch.randint(self.num_words, (BATCH, STEPS), generator=seeded(1))
        self.lengths = torch.tensor([STEPS, STEPS - 1, 2, STEPS])

    @property
    def params(self) -> Any:
        """A copy of the parameters."""
        return deepcopy(self.given).double().eval()


def log_likelihood(parts: Parts, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    prior = Belief(parts.start.expand(len(tokens), -1))
    return discrete.log_likelihood(prior, parts.transition, parts.emission.potentials(tokens), lengths)


def assert_normalised(parts: Parts) -> None:
    """Assert that start, transition rows and emission columns sum to one; a state may have no words."""
    matrix, columns = parts.transition.dense(), parts.emission.dense().exp().sum(0)
    require((parts.start >= 0).all() and (matrix >= 0).all(), "there are negative probabilities")
    assert_close(parts.start.sum(), torch.ones(()), what="sum of the start")
    assert_close(matrix.sum(-1), torch.ones(len(matrix)), what="sums of the rows of the transition")
    assert_close(columns, (columns > 0).double(), what="sums of the columns of the emission")
    require((columns > 0).any(), "no state emits any word")


def normalised_parts(case: Case) -> None:
    """`parts` returns normalised parts of the right size."""
    parts = case.params.parts()
    states = case.given.num_states
    require(parts.start.shape == (states,), f"the shape of the start is {tuple(parts.start.shape)}")
    require(parts.transition.num_states == states, f"the transition has {parts.transition.num_states} states")
    require(parts.emission.num_states == states, f"the emission has {parts.emission.num_states} states")
    assert_normalised(parts)


def single_precision(case: Case) -> None:
    """Check that parameters in float32 give normalised distributions in float32."""
    parts = deepcopy(case.given).float().eval().parts()
    require(parts.start.dtype == parts.transition.dense().dtype == torch.float32, "they are not float32")
    assert_normalised(parts)


def enumeration(case: Case) -> None:
    """The likelihood of a text agrees with an enumeration of all paths."""
    parts, states = case.params.parts(), case.given.num_states
    steps = min(STEPS, max(1, int(np.log(MOST_PATHS) / np.log(max(states, 2)))))
    words = parts.emission.dense().exp().detach().numpy()
    matrices = parts.transition.dense().detach().expand(steps - 1, -1, -1).numpy()
    for row in case.tokens[:, :steps]:
        paths = Paths(parts.start.detach().numpy(), matrices, words[row.numpy()])
        assert_close(log_likelihood(parts, row[None]), np.log([paths.likelihood]))


def gradients(case: Case) -> None:
    """Gradients of the likelihood are finite, and agree with a finite difference in a random direction."""
    params = case.params
    weights = [weight for weight in params.parameters() if weight.requires_grad]
    if not weights:
        return
    total = log_likelihood(params.parts(), case.tokens, case.lengths).sum()
    found = torch.autograd.grad(total, weights, allow_unused=True)
    slopes = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
    require(all(bool(slope.isfinite().all()) for slope in slopes), "a gradient is not finite")
    ways = [torch.randn(w.shape, generator=seeded(i), dtype=w.dtype) for i, w in enumerate(weights)]
    slope = sum(float((g * way).sum()) for g, way in zip(slopes, ways, strict=True))
    ends = [moved(params, weights, ways, sign * NUDGE, case) for sign in (1, -1)]
    quotient = (ends[0] - ends[1]) / (2 * NUDGE)
    require(abs(slope - quotient) <= 1e-4 * max(1.0, abs(quotient)), f"{slope} instead of {quotient}")


@torch.no_grad()
def moved(params: Any, weights: list[Any], ways: list[Tensor], size: float, case: Case) -> float:
    """The log-likelihood after a step of this size in the direction `ways`."""
    before = [weight.clone() for weight in weights]
    for weight, way in zip(weights, ways, strict=True):
        weight.add_(size * way)
    total = float(log_likelihood(params.parts(), case.tokens, case.lengths).sum())
    for weight, old in zip(weights, before, strict=True):
        weight.copy_(old)
    return total


def dropout_of_states(case: Case) -> None:
    """Under state dropout, `parts` returns the model restricted to the kept states, then normalised."""
    params = case.params
    whole, draw = params.parts(), a_draw("state", params)
    assert draw.ids is not None
    parts, ids = params.parts(draw), draw.ids
    require(parts.kept is not None and parts.kept.equal(ids), "`kept` differs from the kept states")
    assert_normalised(parts)
    assert_close(parts.start, shares(whole.start[ids]), what="start")
    matrix = restricted(params, whole.transition.dense(), ids)
    assert_close(parts.transition.dense(), matrix[ids], what="transition")
    assert_close(parts.emission.dense(), whole.emission.dense()[:, ids], what="emission")
    assert_entered(parts, matrix)
    assert_untouched(case, draw)


def assert_untouched(case: Case, draw: Draw) -> None:
    """Assert that the gradients of weights are zero except in the rows that `touched_rows` returns."""
    touched, trainable = case.params.touched_rows(draw), [p for p in case.params.parameters() if p.requires_grad]
    with torch.enable_grad():
        total = log_likelihood(case.params.parts(draw), case.tokens, case.lengths).sum()
        grads = torch.autograd.grad(total, trainable, allow_unused=True)
    for weight, grad in zip(trainable, grads, strict=True):
        if weight in touched and grad is not None:
            others = grad.index_fill(0, touched[weight], 0.0)
            require(not others.any(), "a row of a weight that is not among `touched_rows` has a gradient")


def restricted(params: Params, matrix: Tensor, ids: Tensor) -> Tensor:
    """The transition matrix with only the kept columns, normalised by row, or by row and class: [K, K] -> [K, K']."""
    if not params.within_classes or params.partition is None:
        return shares(matrix[:, ids])
    classes = params.partition.state_class()
    member = torch.nn.functional.one_hot(classes, params.partition.num_classes).to(matrix.dtype)
    return matrix[:, ids] * ((matrix @ member) / (matrix[:, ids] @ member[ids]))[:, classes[ids]]


def assert_entered(parts: Parts, matrix: Tensor) -> None:
    """Assert that `entry` from all states [K] into the kept ones is this matrix [K, K']."""
    require(parts.entry is not None, "there is no `entry` from the states of the full model")
    rows = torch.arange(len(matrix))[::2]
    entry, columns = parts.entry(rows), torch.arange(matrix.shape[1])  # type: ignore[misc]
    assert_close(entry.blocks(torch.arange(len(rows)), columns), matrix[rows], what="blocks of the entry")
    assert_close(entry.forward(torch.eye(len(rows), dtype=matrix.dtype)), matrix[rows], what="forward of the entry")


def dropout_of_transitions(case: Case) -> None:
    """Unstructured dropout removes single transitions, and normalises the others."""
    params = case.params
    whole, parts = params.parts(), params.parts(a_draw("unstructured", params))
    full, thin = whole.transition.dense(), parts.transition.dense()
    require(bool((thin == 0).any()), "no transition was dropped")
    some = (thin > 0).any(-1)
    assert_close(thin[some], shares(full * (thin > 0))[some], what="transition")
    assert_close(parts.start, shares(whole.start * (parts.start > 0)), what="start")


def a_draw(kind: str, params: Params) -> Draw:
    states = 0 if params.partition is not None else params.num_states
    draw = Dropout(kind, RATE, None, params.partition, 3, states=states).draw(params.partition)
    assert draw is not None
    return draw


def shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def restored(case: Case) -> None:
    """`restore` makes the same parameters from JSON settings and tensors."""
    params = case.params
    settings = json.loads(json.dumps(params.settings()))
    tensors = {name: value.detach().clone() for name, value in params.state_dict().items()}
    again = type(params).restore(case.words, settings, dict(tensors))
    require(type(again) is type(params), f"it returned a {type(again).__name__}")
    require(again.settings() == params.settings(), f"its settings are {again.settings()}")
    require(again.state_dict().keys() == tensors.keys(), f"its tensors are {sorted(again.state_dict())}")
    for name, value in again.state_dict().items():
        require(value.equal(tensors[name]), f"the tensor {name} differs")
    for one, other in zip(tables(again.eval().parts()), tables(params.parts()), strict=True):
        assert_close(one, other)


def tables(parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    return parts.start, parts.transition.dense(), parts.emission.dense().exp()


def named(case: Case) -> None:
    """The settings contain the name of the parameterisation and the number of states."""
    settings = case.given.settings()  # type: ignore[operator]
    require(settings.get("params") == case.given.kind, f'settings()["params"] is {settings.get("params")!r}')
    require(settings.get("states") == case.given.num_states, f'settings()["states"] is {settings.get("states")!r}')


def frequent_words(case: Case) -> None:
    """`shift_word_logits` multiplies the probability of a word by e^score in every state, before normalisation."""
    params, scores = case.params, torch.randn(case.num_words, generator=seeded(2), dtype=torch.float64)
    before = params.parts().emission.dense().exp()
    params.shift_word_logits(scores)
    wanted = before * scores.exp().unsqueeze(-1)
    totals = wanted.sum(0)
    assert_close(params.parts().emission.dense().exp(), wanted / totals.masked_fill(totals == 0, 1.0))


def written(case: Case) -> None:
    """`parts` returns the parts that `write` was given."""
    params = case.params
    before = [table.detach().clone() for table in tables(params.parts())]
    params.write(params.parts())
    for one, other in zip(tables(params.parts()), before, strict=True):
        assert_close(one, other)


def em(case: Case) -> None:
    """Every M-step returns normalised parts, and none lowers the likelihood."""
    params, history = case.params, []
    for _ in range(6):
        with torch.no_grad():
            counts, _ = expect(params.parts(), case.tokens, case.lengths)
        history.append(float(counts.log_likelihood))
        params.maximise(counts, Prior())
        assert_normalised(params.parts())
    require((np.diff(history) > -FALL).all(), f"log-likelihoods {history}")
    require(history[-1] > history[0], "nothing was learned")


def pseudocounts(case: Case) -> None:
    """An M-step with pseudocounts returns normalised parts in which every word is possible."""
    params = case.params
    with torch.no_grad():
        counts, _ = expect(params.parts(), case.tokens, case.lengths)
    params.maximise(counts, Prior.same(0.5))
    assert_normalised(params.parts())
    require((params.parts().emission.dense() > -torch.inf).any(1).all(), "a word has become impossible")


CHECKS: list[Check] = [normalised_parts, single_precision, enumeration, gradients]
SAVED: list[Check] = [restored]
NAMED: list[Check] = [named, frequent_words]
MAXIMISABLE: list[Check] = [written, em, pseudocounts]
DROPS: dict[str, Check] = {"state": dropout_of_states, "unstructured": dropout_of_transitions}
