"""Baum-Welch for estimators: several restarts at once, each with a monitor of its own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from trellis.estimators import exact, monitor
from trellis.estimators.blocks import Block
from trellis.estimators.exact import Chain
from trellis.estimators.monitor import ConvergenceMonitor
from trellis.inference import discrete
from trellis.transitions import Dense, Stacked
from trellis.types import Belief, Counts, Potentials

Parameters = dict[str, Tensor]  # named like the attributes of the estimator


class Family(Protocol):
    """What Baum-Welch asks of a kind of model."""

    def log_table(self, params: Parameters, block: Block) -> Tensor:
        """log p(x | z) of the observations that the block's rows name: [N, K]."""
        ...

    def statistics(self, params: Parameters, block: Block, visits: Tensor) -> Tensor:
        """What the M-step needs of expected visits [N, K]; they add and scale."""
        ...

    def maximise(self, params: list[Parameters], counts: list[Counts]) -> list[Parameters]:
        """The M-step, for each restart."""
        ...


@dataclass
class Restart:
    """One run of EM from one start."""

    params: Parameters
    monitor: ConvergenceMonitor
    valid: list[float] = field(default_factory=list)  # held-out log-likelihood after every iteration
    best: Parameters = field(default_factory=dict)
    done: bool = False

    @property
    def merit(self) -> float:
        """What restarts are compared by."""
        return max(self.valid) if self.valid else self.monitor.history[-1] if self.monitor.history else -torch.inf

    def judge(self, score: float, patience: int) -> None:
        """Note a held-out score: the best parameters are kept, and too long without better ones is the end."""
        if not self.valid or score > max(self.valid):
            self.best = deepcopy(self.params)
        self.valid.append(score)
        self.done |= len(self.valid) - self.valid.index(max(self.valid)) > patience


class Stream(NamedTuple):
    """Stepwise EM (Cappe and Moulines): the expected statistics of one observation, as a running mean."""

    steps: int = 0
    seen: int = 0  # observations
    mean: Counts | None = None

    def absorb(self, counts: Counts, observations: int, decay: float) -> Stream:
        """Move the mean towards that of new counts by (steps + 1) ** -decay."""
        rate, new = (self.steps + 1.0) ** -decay, Counts(*(value.cpu() / observations for value in counts))
        mean = new if self.mean is None else Counts(*(value * (1 - rate) for value in self.mean)).plus(new, rate)
        return Stream(self.steps + 1, self.seen + observations, mean)

    def counts(self, device: str) -> Counts:
        """The statistics of all observations so far, had they all been like the mean."""
        assert self.mean is not None
        return Counts(*(value.to(device) * self.seen for value in self.mean))


def baum_welch(
    family: Family, restarts: Sequence[Restart], train: list[Block], valid: list[Block], n_iter: int, patience: int
) -> Restart:
    """Run every restart until it converges; the best of them, with its best parameters."""
    for _ in range(n_iter):
        active = [restart for restart in restarts if not restart.done]
        if not active:
            break
        counts = expect(family, [restart.params for restart in active], train)
        updated = family.maximise([restart.params for restart in active], counts)
        for restart, params, found in zip(active, updated, counts, strict=True):
            restart.params = params
            restart.monitor.report(float(found.log_likelihood))
            restart.done = restart.monitor.converged
            if valid:
                restart.judge(float(sum(log_likelihoods(family, params, valid))), patience)
    best = max(restarts, key=lambda restart: restart.merit)
    if best.merit == -torch.inf and n_iter:
        monitor.log.warning("The data are impossible under the parameters: zero probabilities forbid a sequence.")
    best.params = best.best or best.params
    return best


def chain(family: Family, params: Parameters, block: Block) -> Chain:
    """What inference takes for one block."""
    prior = Belief(params["startprob_"].expand(len(block.lengths), -1))
    return prior, Dense(params["transmat_"]), Potentials(family.log_table(params, block), block.rows), block.lengths


def log_likelihoods(family: Family, params: Parameters, blocks: Sequence[Block]) -> list[Tensor]:
    """log p(x) of each block."""
    return [exact.log_likelihood(chain(family, params, block)).sum() for block in blocks]


def expect(family: Family, restarts: list[Parameters], blocks: Sequence[Block]) -> list[Counts]:
    """The E-step of every restart: side by side on a GPU, one after the other where a compiled pass does each."""
    totals: list[Counts] = []
    for block in blocks:
        found = expect_together(family, restarts, block) if len(restarts) > 1 and block.rows.is_cuda else []
        if not found or any(bool(counts.log_likelihood == -torch.inf) for counts in found):
            found = [expect_one(family, params, block) for params in restarts]
        totals = [total.plus(new) for total, new in zip(totals, found, strict=True)] if totals else found
    return totals


def expect_one(family: Family, params: Parameters, block: Block) -> Counts:
    counts = exact.counts(chain(family, params, block))
    return counts._replace(emission=family.statistics(params, block, counts.emission))


def expect_together(family: Family, restarts: list[Parameters], block: Block) -> list[Counts]:
    """All restarts in one pass: R copies of the sequences, each copy with the parameters of one restart."""
    tables = torch.stack([family.log_table(params, block) for params in restarts])  # [R, N, K]
    copies, (batch, _), states = len(restarts), block.rows.shape, tables.shape[-1]
    shift = torch.arange(copies, device=tables.device)[:, None, None] * tables.shape[1]
    rows = torch.where(block.rows < 0, -1, block.rows + shift).flatten(0, 1)
    prior = torch.stack([params["startprob_"] for params in restarts]).repeat_interleave(batch, 0)
    transition = Stacked(torch.stack([params["transmat_"] for params in restarts]))
    apart, _ = discrete.counts_apart(
        Belief(prior), transition, Potentials(tables.flatten(0, 1), rows), block.lengths.repeat(copies)
    )
    return [
        Counts(log_likelihood, start, moves, family.statistics(params, block, visits))
        for params, log_likelihood, start, moves, visits in zip(
            restarts,
            apart.log_likelihood.view(copies, batch).sum(1),
            apart.start.view(copies, batch, states).sum(1),
            apart.transition,
            apart.emission.view(tables.shape),
            strict=True,
        )
    ]


def log(values: Tensor) -> Tensor:
    """The logarithm, -inf of zero; on a CPU by NumPy, since torch would wake its own threads for so little."""
    if values.is_cuda:
        return values.log()
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(values.numpy()))


def reestimate(old: Tensor, counts: Tensor, prior: Tensor, keep_zeros: bool = True) -> Tensor:
    """The most probable distributions [..., n] given expected counts and a Dirichlet prior (1: none).

    What must stay zero stays zero; a distribution that nothing was counted for stays as it was."""
    weights = (prior - 1 + counts).clamp(min=0)
    if keep_zeros:
        weights = weights.masked_fill(old == 0, 0.0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, old)
