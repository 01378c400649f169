"""A linear dynamical system over given word vectors, instead of one-hot words, learned by exact EM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from trellis.inference import gaussian
from trellis.inference.gaussian import Dynamics, Normal, Observation
from trellis.learning.kalman_em import learn_exactly

LANES, STEPS = 128, 1000  # tokens of the text that the system is learned from
LARGEST, SHARE = 0.95, 0.5  # initially: the spectral radius at most; the fraction of variance explained by the state
SENTENCES = 256  # parallel sequences


@dataclass(frozen=True)
class DenseSystem:
    """A linear dynamical system whose observation y_t is the centred vector of word t."""

    table: Tensor  # [V, p]
    cov: Tensor  # [p, p] of the vectors of the text
    prior: Normal
    dynamics: Dynamics
    observation: Observation

    @classmethod
    def fit(cls, table: Tensor, tokens: Tensor, iterations: int) -> DenseSystem:
        """Fit to vectors [V, p] and a text [T] of at least LANES words; EM is initialised by moments of neighbours."""
        steps = min(STEPS, len(tokens) // LANES)
        table = table.double() - table.double()[tokens].mean(0)
        text = table[tokens]
        eye = torch.eye(text.shape[1]).to(text)
        cov = text.T.cov() + 1e-6 * text.var() * eye
        root = torch.linalg.cholesky(SHARE * cov)
        white = torch.linalg.solve_triangular(root, text.T, upper=False)
        left, values, right = torch.linalg.svd(white[:, 1:] @ white[:, :-1].T / len(text))
        transition = (left * values.clamp(max=LARGEST)) @ right
        system = Normal(torch.zeros_like(cov[0]), eye), Dynamics(transition, eye - transition @ transition.T)
        observation = Observation(root, (1 - SHARE) * cov)
        values = table[tokens[: LANES * steps].view(LANES, steps)]
        for step in islice(learn_exactly(*system, observation, values), iterations):
            system, observation = (step.prior, step.dynamics), step.observation
        return cls(table, cov, *system, observation)

    def read(self, sentences: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """Smoothed vectors [T, h] of sentences [T], and the gain in nats per token over a memoryless Gaussian."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found, gained = [torch.empty(0)] * len(sentences), 0.0
        alone = torch.distributions.MultivariateNormal(torch.zeros_like(self.cov[0]), self.cov)
        for begin in range(0, len(order), SENTENCES):
            chosen = order[begin : begin + SENTENCES]
            lengths = torch.tensor([len(sentences[i]) for i in chosen])
            tokens = torch.nn.utils.rnn.pad_sequence([sentences[i] for i in chosen], batch_first=True)
            potentials = gaussian.observe(self.observation, self.table[tokens])
            means = gaussian.smoothed_means(self.prior, self.dynamics, potentials, lengths)
            gained += float(gaussian.log_likelihood(self.prior, self.dynamics, potentials, lengths).sum())
            gained -= float(alone.log_prob(self.table[torch.cat([sentences[i] for i in chosen])]).sum())
            for i, rows, length in zip(chosen, means, lengths.tolist(), strict=True):
                found[i] = rows[:length]
        return found, gained / sum(map(len, sentences))
