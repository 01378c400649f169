"""A second opinion: hmmlearn's likelihood, best path, posteriors and Baum-Welch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trellis.families.hmm.parameters import TableParams
from trellis.inference import discrete
from trellis.parts import Prior
from trellis.testing.problems import distributions
from trellis.types import Belief, Counts

hmm = pytest.importorskip("hmmlearn.hmm")

STATES, WORDS, TOLERANCE = 4, 7, 1e-8
LENGTHS = [9, 1, 14, 6, 11]


class Twins:
    """The same random HMM here and there, and the same ragged text."""

    def __init__(self, seed: int, zeros: float = 0.0, iterations: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = ((STATES,), (STATES, STATES), (STATES, WORDS))
        probabilities = [distributions(generator, *size, zeros=zeros) for size in sizes]
        self.ours = TableParams(STATES, WORDS).double()
        self.ours.set_probabilities(*probabilities)
        self.theirs = hmm.CategoricalHMM(
            STATES, n_features=WORDS, n_iter=iterations, tol=-np.inf, init_params="", implementation="scaling"
        )
        self.theirs.startprob_, self.theirs.transmat_, self.theirs.emissionprob_ = (p.numpy() for p in probabilities)
        self.tokens = torch.randint(WORDS, (len(LENGTHS), max(LENGTHS)), generator=generator)
        self.lengths = torch.tensor(LENGTHS)

    @property
    def sentences(self) -> list[np.ndarray]:
        return [row[:n].numpy()[:, None] for row, n in zip(self.tokens, LENGTHS, strict=True)]

    @property
    def problem(self) -> tuple:
        prior = Belief(self.ours.parts().start.expand(len(LENGTHS), -1))
        potentials = self.ours.parts().emission.potentials(self.tokens)
        return prior, self.ours.parts().transition, potentials, self.lengths

    def probabilities(self) -> tuple[np.ndarray, ...]:
        emission = self.ours.parts().emission.table.exp().T
        return tuple(
            p.detach().numpy() for p in (self.ours.parts().start, self.ours.parts().transition.matrix, emission)
        )


@pytest.mark.parametrize("seed", range(3))
def test_likelihood_and_posteriors(seed: int) -> None:
    twins = Twins(seed)
    posterior = discrete.smooth(*twins.problem)
    for b, sentence in enumerate(twins.sentences):
        score, probs = twins.theirs.score_samples(sentence)
        np.testing.assert_allclose(posterior.log_likelihood[b].item(), score, rtol=TOLERANCE)
        np.testing.assert_allclose(posterior.probs[b, : len(sentence)].detach(), probs, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_viterbi(seed: int) -> None:
    twins = Twins(seed)
    path, scores = discrete.viterbi(*twins.problem)
    for b, sentence in enumerate(twins.sentences):
        score, states = twins.theirs.decode(sentence, algorithm="viterbi")
        np.testing.assert_allclose(scores[b].item(), score, rtol=TOLERANCE)
        np.testing.assert_array_equal(path[b, : len(sentence)], states)


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_baum_welch(zeros: float) -> None:
    iterations = 8
    twins = Twins(7, zeros, iterations)
    if zeros:
        keep_possible(twins)
    twins.theirs.fit(np.concatenate(twins.sentences), LENGTHS)
    history = []
    for _ in range(iterations):
        counts, _ = discrete.counts(*twins.problem)
        history.append(counts.log_likelihood.item())
        twins.ours.maximise(counts, Prior())
    np.testing.assert_allclose(history, list(twins.theirs.monitor_.history)[-iterations:], rtol=TOLERANCE)
    theirs = twins.theirs
    for one, other in zip(
        twins.probabilities(), (theirs.startprob_, theirs.transmat_, theirs.emissionprob_), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)
    assert (np.diff(history) > 0).all()


def keep_possible(twins: Twins) -> None:
    """Replace the text by one that a model with zeros can have written."""
    generator = torch.Generator().manual_seed(8)
    start, transition, emission = twins.ours.parts().start, twins.ours.parts().transition, twins.ours.parts().emission
    states = discrete.sample_prior(start, transition, len(LENGTHS), max(LENGTHS), generator)
    twins.tokens = emission.sample(states, generator)


def test_counts_of_sentences_add_up_to_those_of_the_batch() -> None:
    twins = Twins(9)
    together, _ = discrete.counts(*twins.problem)
    prior, transition, potentials, lengths = twins.problem
    total: Counts | None = None
    for b in range(len(LENGTHS)):
        row = potentials._replace(rows=potentials.rows[b : b + 1])
        one, _ = discrete.counts(Belief(prior.probs[b : b + 1]), transition, row, lengths[b : b + 1])
        total = one if total is None else total.plus(one)
    assert total is not None
    for one, other in zip(total, together, strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), atol=1e-10)
