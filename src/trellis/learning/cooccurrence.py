"""Learn an HMM from co-occurrence counts of adjacent symbols, without further passes over the data.

Let Omega be the joint distribution of adjacent symbols (m x m), A the transition matrix, B the emission matrix (n x m),
and pi the stationary distribution of the states. Then Omega = B' Theta B, where Theta = diag(pi) A is the joint
distribution of adjacent states. The observed Omega is stored as a dense matrix for few symbols, and as a sparse one for
many. In the sparse case no m x m matrix is formed, since |B' Theta B|^2 = tr(Theta' G Theta G) with G = B B', and
<Omega, B' Theta B> = <Theta, B Omega B'>.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from trellis.inference.stationary import stationary
from trellis.learning.descent import Descent, minimise

DENSE_SYMBOLS = 512  # use a dense Omega up to this many symbols


def count_pairs(symbols: np.ndarray, lengths: np.ndarray, size: int) -> csr_array:
    """Count how often symbol j follows symbol i in concatenated sequences: [size, size]; -1 is a missing symbol.

    The counts of several data sets can be added."""
    joins = np.ones(len(symbols), bool)
    joins[np.cumsum(lengths)[:-1]] = False
    known = joins[1:] & (symbols[:-1] >= 0) & (symbols[1:] >= 0)
    pairs = symbols[:-1][known], symbols[1:][known]
    return coo_array((np.ones(len(pairs[0])), pairs), (size, size)).tocsr()


def frequencies(counts: csr_array) -> Tensor:
    """Omega: the counts as joint probabilities in float64, dense for few symbols and sparse for many."""
    if counts.shape[0] <= DENSE_SYMBOLS:
        return torch.from_numpy(counts.toarray() / counts.sum())
    pairs = counts.tocoo()
    index = torch.from_numpy(np.stack([pairs.row, pairs.col]).astype(np.int64))
    values = torch.from_numpy(pairs.data / counts.sum())
    with warnings.catch_warnings():  # torch 2.11 warns even if checks are requested explicitly
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
        return torch.sparse_coo_tensor(index, values, counts.shape, check_invariants=True).coalesce()


def joint_states(transition: Tensor) -> Tensor:
    """Theta[k, l], the stationary probability that state k is followed by state l: [..., n, n]."""
    return stationary(transition).unsqueeze(-1) * transition


def squared_distance(theta: Tensor, emission: Tensor, omega: Tensor) -> Tensor:
    """The squared Frobenius distance |Omega - B' Theta B|^2, with B = `emission`: [...]."""
    if not omega.is_sparse:
        return (emission.mT @ theta @ emission - omega).square().sum((-2, -1))
    gram = emission @ emission.mT
    after = torch.sparse.mm(omega, emission.reshape(-1, emission.shape[-1]).T).T.view(emission.shape)  # B Omega'
    observed, model = emission @ after.mT, (theta * (gram @ theta @ gram)).sum((-2, -1))
    return omega.values().square().sum() - 2 * (theta * observed).sum((-2, -1)) + model


def divergence(theta: Tensor, emission: Tensor, omega: Tensor) -> Tensor:
    """The divergence KL(Omega || B' Theta B), with B = `emission`, summed over the pairs that occur: [...]."""
    if omega.is_sparse:
        first, second = omega.indices()
        found, wanted = (emission[..., first] * (theta @ emission)[..., second]).sum(-2), omega.values()
    else:
        found, wanted = (emission.mT @ theta @ emission).flatten(-2), omega.flatten(-2)
    return (torch.xlogy(wanted, wanted) - torch.xlogy(wanted, found)).sum(-1)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"frobenius": squared_distance, "kl": divergence}


def objective(
    transition: Tensor, emission: Tensor, omega: Tensor, loss: str = "frobenius", penalty: float = 0.0
) -> Tensor:
    """The distance between the joint distribution of adjacent symbols in a model and the observed one, `omega`: [...].

    `penalty` times log|det Theta| is added, where Theta is the joint distribution of adjacent states (Huang, Fu and
    Sidiropoulos 2018). Of the models that fit equally well, this selects the one with the smallest |det Theta|."""
    theta = joint_states(transition)
    distance = LOSSES[loss](theta, emission, omega)
    return distance + penalty * torch.linalg.slogdet(theta).logabsdet if penalty else distance


def match(
    weights: Sequence[Tensor],
    compose: Callable[[], tuple[Tensor, Tensor]],
    omega: Tensor,
    loss: str = "frobenius",
    penalty: float = 0.0,
    steps: int = 10_000,
    optimizer: str = "adam",
    lr: float = 0.001,
) -> Descent:
    """Fit transitions [..., n, n] and emissions [..., n, m], which `compose` makes from the weights, to `omega`."""
    return minimise(weights, lambda: objective(*compose(), omega, loss, penalty), steps, optimizer, lr)
