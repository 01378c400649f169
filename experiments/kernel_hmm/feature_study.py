"""`python -m experiments.kernel_hmm.feature_study` compares random with learned features, rank and entropy with and
without a band, and spectral methods; writes study.json, which `python -m experiments plot kernel-hmm` draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from experiments.kernel_hmm import spectral_hmm
from trellis.families.hmm.parameters.features import Exponential, Taylor, gaussian, orthogonal
from trellis.storage import write_text
from trellis.transitions import Banded, LowRank, Sum
from trellis.transitions.banded import band_probs
from trellis.transitions.lowrank import normalise_features

FOLDER = Path(__file__).parent
FEATURES = (16, 32, 64, 128, 256, 512, 1024)
DRAWS = 400  # feature maps sampled to estimate a mean squared error
MATRICES = {
    f"{states} states, norm {norm:g}, {dim} dimensions": (states, dim, norm)
    for states, norm, dim in (
        (128, 1.0, 16), (128, 2.0, 16), (128, 3.0, 16), (128, 2.0, 64), (64, 2.0, 16), (256, 2.0, 16), (512, 2.0, 16),
    )
}  # fmt: skip


def trigonometric(x: Tensor, weight: Tensor) -> Tensor:
    """exp(|x|^2 / 2) (cos w x, sin w x) / sqrt(m): also unbiased, but possibly negative."""
    angles = x @ weight.T
    waves = torch.cat([angles.cos(), angles.sin()], -1) / len(weight) ** 0.5
    return waves * (x.square().sum(-1, keepdim=True) / 2).exp()


def positive(x: Tensor, weight: Tensor) -> Tensor:
    return Exponential(weight, learned=False)(x).exp()


Map = Callable[[Tensor, Tensor], Tensor]
ESTIMATORS: dict[str, tuple[Map, Callable[[int, int], Tensor]]] = {
    "positive": (positive, gaussian),
    "orthogonal": (positive, orthogonal),
    "trigonometric": (trigonometric, gaussian),
}


def predicted(kind: str, x: Tensor, y: Tensor, features: int) -> float:
    """The predicted squared error of phi(x) . phi(y) as an estimate of exp(x . y), divided by exp(2 x . y); mean over
    pairs."""
    square, apart = (2 * (x * y).sum(-1)).exp(), (x - y).square().sum(-1)
    if kind == "trigonometric":
        spread = (x.square().sum(-1) + y.square().sum(-1)).exp() * (1 - (-apart).exp()).square() / 2
    else:
        spread = square * ((x + y).square().sum(-1).exp() - 1)
    return float((spread / square).mean() / features)


def squared_errors(dim: int, norm: float, features: int, pairs: int = 64) -> dict[str, dict[str, float]]:
    """Relative squared errors, measured and predicted; mean over random pairs of the same norm."""
    torch.manual_seed(0)
    x, y = (norm * torch.nn.functional.normalize(torch.randn(pairs, dim, dtype=torch.float64), dim=-1) for _ in "xy")
    exact = (x * y).sum(-1).exp()
    found: dict[str, dict[str, float]] = {}
    for kind, (phi, draw_weights) in ESTIMATORS.items():
        weights = [draw_weights(features, dim).double() for _ in range(DRAWS)]
        errors = [((phi(x, w) * phi(y, w)).sum(-1) / exact - 1).square().mean() for w in weights]
        found[kind] = {"measured": float(torch.stack(errors).mean())}
        if kind != "orthogonal":  # orthogonal features have no closed form
            found[kind]["predicted"] = predicted(kind, x, y, features)
    return found


def divergence(log_true: Tensor, probs: Tensor) -> float:
    """The mean over rows of KL(true || probs), in nats."""
    return float((log_true.exp() * (log_true - probs.clamp(min=1e-300).log())).sum(-1).mean())


def softmax_rows(states: int, dim: int, norm: float) -> tuple[Tensor, Tensor, Tensor]:
    """u, v and log A of a random softmax matrix."""
    torch.manual_seed(1)
    u, v = (norm / dim**0.5 * torch.randn(states, dim, dtype=torch.float64) for _ in "uv")
    return u, v, (u @ v.T).log_softmax(-1)


def approximations(states: int, dim: int, norm: float, features: int, steps: int = 250) -> dict[str, float]:
    """KL from a softmax matrix of its approximation by random features, by learned W for its embeddings, and by freely
    learned features of both sides."""
    u, v, log_true = softmax_rows(states, dim, norm)
    found = {}
    for kind, draw_weights in (("random", gaussian), ("orthogonal", orthogonal)):
        phi = Exponential(draw_weights(features, dim).double(), learned=False)
        found[kind] = divergence(log_true, of_features(phi(u), phi(v))[0].dense())
    phi = Exponential(gaussian(features, dim).double(), learned=True)
    weights = nearest(log_true, list(phi.parameters()), lambda: of_features(phi(u), phi(v))[0], steps)
    found["weights"] = divergence(log_true, weights.dense().detach())
    found["learned"] = divergence(log_true, fit_features(log_true, features, steps).dense().detach())
    return found


def truncations(states: int, dim: int, norm: float, features: int) -> dict[str, float]:
    """KL from a softmax matrix of positive vectors of its approximation by the Taylor map and by random features, and
    the order of the Taylor map."""
    u, v, _ = softmax_rows(states, dim, norm)
    x, y = softplus(u), softplus(v)
    log_true = (x @ y.T).log_softmax(-1)
    taylor, drawn = Taylor(dim, features).double(), Exponential(gaussian(features, dim).double(), learned=False)
    return {
        "order": taylor.order,
        "taylor": divergence(log_true, of_features(taylor(u), taylor(v))[0].dense()),
        "random": divergence(log_true, of_features(drawn(x), drawn(y))[0].dense()),
    }


def of_features(log_left: Tensor, log_right: Tensor) -> tuple[LowRank, Tensor]:
    """The operator of log phi(u) [K, F] and log phi(v) [K, F], and log N_z [K]."""
    into, out, log_norm = normalise_features(log_left, log_right)
    return LowRank(into, out), log_norm


def fit_features(log_true: Tensor, features: int, steps: int) -> LowRank:
    """The closest approximation of a matrix by free features of both sides."""
    torch.manual_seed(2)
    u, v = (torch.randn(len(log_true), features, dtype=torch.float64).requires_grad_() for _ in "uv")
    return nearest(log_true, [u, v], lambda: of_features(u, v)[0], steps)


def nearest(log_true: Tensor, weights: list[Tensor], build: Callable[[], LowRank], steps: int) -> LowRank:
    """The closest approximation of a matrix in KL, by gradient descent on the weights."""
    optimizer = torch.optim.Adam(weights, lr=0.1)
    lowest, best = torch.inf, build()
    for _ in range(steps):
        optimizer.zero_grad()
        operator = build()
        probs = operator.dense()
        (-(log_true.exp() * probs.log()).sum(-1).mean()).backward()
        optimizer.step()
        apart = divergence(log_true, probs.detach())
        lowest, best = (apart, operator) if apart < lowest else (lowest, best)
    return best


def ranks(states: int, features: int, width: int, spread: float) -> dict[str, dict[str, float]]:
    """Numerical rank and mean row entropy of random matrices, without a band and with one of equal weight."""
    torch.manual_seed(3)
    left, right = (spread * torch.randn(states, features, dtype=torch.float64) for _ in "uv")
    low = of_features(left, right)
    band, _ = band_probs(spread * torch.randn(states, width, dtype=torch.float64))
    both = Sum.normalised(low, (Banded(band), low[1]))
    found = {}
    for name, matrix in (("low rank", low[0].dense()), ("with band", both.dense())):
        found[name] = shape_of(matrix)
    return found


def shape_of(matrix: Tensor) -> dict[str, float]:
    """Numerical rank and mean row entropy."""
    entropy = torch.special.entr(matrix).sum(-1).mean()
    return {"rank": float(numerical_rank(matrix)), "entropy": float(entropy)}


def numerical_rank(matrix: Tensor, tolerance: float = 1e-5) -> int:
    """The number of singular values above a fraction of the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum())


def spectral(seeds: int) -> dict[str, Any]:
    """Medians over random HMMs."""
    errors = {}
    for tokens in spectral_hmm.TOKENS:
        found = [spectral_hmm.study(seed, tokens) for seed in range(seeds)]
        errors[tokens] = {name: median(one[name] for one in found) for name in found[0]}
    others = range(10, 10 + 2 * (seeds + 1))  # seeds not used in development
    return {"errors": errors, "em": {seed: spectral_hmm.starts(seed, 100_000) for seed in (*range(seeds), *others)}}


def study(seeds: int = 4) -> dict[str, Any]:
    """All figures of the study."""
    return {
        "squared_errors": {
            f"{dim} dimensions, norm {norm:g}": {m: squared_errors(dim, norm, m) for m in FEATURES[:5]}
            for dim in (16, 64)
            for norm in (0.5, 1.0)
        },
        "divergence": {
            name: {m: approximations(states, dim, norm, m) for m in FEATURES[:5] if m <= states}
            for name, (states, dim, norm) in MATRICES.items()
        },
        "matrices": {name: shape_of(softmax_rows(*sizes)[-1].exp()) for name, sizes in MATRICES.items()},
        "truncations": {
            f"{dim} dimensions, norm {norm:g}": {m: truncations(128, dim, norm, m) for m in FEATURES[:5] if m > dim}
            for dim in (4, 16)
            for norm in (1.0, 2.0)
        },
        "ranks": {width: ranks(512, 64, width, 1.0) for width in (8, 32, 128)},
        "spectral": spectral(seeds),
    }


def main() -> None:
    torch.set_num_threads(1)
    figures = study(*map(int, sys.argv[1:2]))
    write_text(FOLDER / "study.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
