"""Spectral learning: HMMs from counts of adjacent symbols. Three of the four methods neither iterate nor end in local
optima.

All methods need a stationary text, at least as many symbols x as states z, and emissions O = p(x | z) and transitions
T = p(z' | z) whose rank is the number m of states. Errors decrease as 1 / sqrt(tokens), with a constant that grows as
the m-th singular value of P21, the matrix of pairs of symbols, shrinks. Near rank deficiency, or with too little text,
all methods fail:
    ObservableOperators (Hsu, Kakade, Zhang)  only scores sequences; negative probabilities can occur and are reported
    by_eigenvectors (Anandkumar, Hsu, Kakade)  finds O as eigenvalues, which noise can make complex or reorder
    by_anchors (Stratos, Collins, Hsu)  assumes that each state has an anchor word; biased if some have none
    by_cooccurrence (Huang, Fu, Sidiropoulos)  uses pairs only; iterates, and may end in a local optimum
The last three return estimates projected onto valid distributions, which can initialise EM or gradient training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import nnls
from sklearn.utils.extmath import randomized_svd

from trellis.errors import TrellisError
from trellis.inference.stationary import stationary
from trellis.learning.cooccurrence import frequencies, match

Array = NDArray[np.float64]
SMALLEST = 1e-12  # minimum of conditional probabilities
SMOOTHING = 1e-3
IMPROVED, ROUNDS = 4, 50  # number of candidates that EM on the triples refines, and of its iterations
PENALTY = 1e-5  # weight of log |det Theta|
TRIALS = 40  # random mixtures of operators; the one that best fits the counts is used


class Moments(NamedTuple):
    """Probabilities of single symbols and of two and three adjacent symbols, the latest symbol first."""

    single: Array  # [V]
    pairs: sparse.csr_matrix  # [V, V]: P21(i, j) = p(x_2 = i, x_1 = j)
    triples: NDArray[np.int64]  # [3, N]: every observed triple x_3, x_2, x_1
    shares: Array  # [N]: the probability of each triple

    @property
    def skipping(self) -> sparse.csr_matrix:
        """P31(i, j) = p(x_3 = i, x_1 = j), with the middle symbol summed out: [V, V]."""
        return table(self.triples[0], self.triples[2], self.shares, len(self.single))

    def middle(self, left: Array, right: Array) -> Array:
        """left' P3x1 right, with P3x1(i, j) = p(x_3 = i, x_2 = x, x_1 = j), for every symbol x: [V, m, m]."""
        size, m = len(self.single), left.shape[1]
        late, here, early = self.triples
        found = np.zeros((size, m, m))
        for i in range(m):  # never V x V x V, nor N x m x m
            for j in range(m):
                found[:, i, j] = np.bincount(here, self.shares * left[late, i] * right[early, j], size)
        return found


def moments(tokens: NDArray[np.int64], size: int) -> Moments:
    """The moments of sequences [B, T] over `size` symbols."""
    tokens = np.asarray(tokens, np.int64)  # triple codes need 64 bits
    if tokens.ndim != 2 or not len(tokens) or tokens.shape[1] < 3:
        raise TrellisError("Spectral learning counts triples; pass sequences [B, T] of at least three symbols.")
    if tokens.min() < 0 or tokens.max() >= size:
        raise TrellisError(
            f"The symbols range from {tokens.min()} to {tokens.max()}, not 0 to {size - 1}: spectral learning needs "
            "texts without gaps, of at most `size` symbols."
        )
    early, here, late = tokens[:, :-2].ravel(), tokens[:, 1:-1].ravel(), tokens[:, 2:].ravel()
    codes, counts = np.unique((late * size + here) * size + early, return_counts=True)
    triples = np.stack([codes // size**2, codes // size % size, codes % size])
    pairs = table(tokens[:, 1:].ravel(), tokens[:, :-1].ravel(), np.ones(tokens[:, 1:].size), size)
    single = np.bincount(tokens.ravel(), minlength=size) / tokens.size
    return Moments(single, pairs / pairs.sum(), triples, counts / counts.sum())


def table(rows: NDArray[np.int64], columns: NDArray[np.int64], weights: Array, size: int) -> sparse.csr_matrix:
    return sparse.coo_matrix((weights, (rows, columns)), shape=(size, size)).tocsr()


def subspaces(matrix: sparse.csr_matrix, states: int, seed: int) -> tuple[Array, Array]:
    """The leading left and right singular vectors of a matrix: [V, m] each."""
    if not 1 <= states <= matrix.shape[0]:
        raise TrellisError(
            f"Spectral learning needs at least 1 state, and no more than the {matrix.shape[0]} symbols; got {states}."
        )
    left, values, right = randomized_svd(matrix, states, random_state=seed)
    if values[-1] <= SMALLEST * values[0]:
        raise TrellisError(f"The matrix of symbol pairs has rank below {states}; use fewer states.")
    return left, right.T


class Scores(NamedTuple):
    """The scores of a sequence under observable operators."""

    log_probs: Array  # [T]: log p(x_t | x_<t)
    negative: int  # non-positive probabilities, replaced by SMALLEST


class ObservableOperators:
    """An HMM that scores sequences by products of matrices: p(x_1, ..., x_T) = b_inf' B_{x_T} ... B_{x_1} b_1.

    Here b_1 = U' P1, b_inf = (P21' U)^+ P1 and B_x = (U' P3x1) (U' P21)^+. U has the leading left singular vectors of
    P21, and P1, P21 and P3x1 are probabilities of symbols (`Moments`)."""

    def __init__(self, given: Moments, states: int, seed: int = 0) -> None:
        basis, _ = subspaces(given.pairs, states, seed)
        inverse = np.linalg.pinv(given.pairs.T @ basis)  # ((U' P21)^+)': [m, V]
        self.begin = basis.T @ given.single  # [m]
        self.end = inverse @ given.single  # [m]
        self.operators = given.middle(basis, inverse.T)  # [V, m, m]

    def score(self, tokens: NDArray[np.int64]) -> Scores:
        """Score one sequence [T]; the state is reset after a non-positive probability."""
        state, found = self.begin / (self.end @ self.begin), np.empty(len(tokens))
        for t, token in enumerate(tokens):
            onward = self.operators[token] @ state
            found[t] = self.end @ onward
            state = onward / found[t] if found[t] > SMALLEST else self.begin / (self.end @ self.begin)
        return Scores(np.log(found.clip(SMALLEST)), int((found <= SMALLEST).sum()))


class Probabilities(NamedTuple):
    """The probability tables of an HMM."""

    start: Array  # [K]
    transition: Array  # [K, K]: p(z' | z)
    emission: Array  # [K, V]: p(x | z)

    def smoothed(self, share: float) -> Probabilities:
        """Mix all tables with uniform distributions, so that EM does not start from zeros."""
        return Probabilities(*((1 - share) * part + share / part.shape[-1] for part in self))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The arguments of `TableParams.set_probabilities`."""
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in self)


def by_eigenvectors(given: Moments, states: int, seed: int = 0) -> Probabilities:
    """An estimate that finds the emission probabilities of every symbol x as eigenvalues of (L' P3x1 R) (L' P31 R)^-1.

    L and R are the leading singular vectors of P31; P3x1 and P31 are probabilities of triples (`Moments`)."""
    left, right = subspaces(given.skipping, states, seed)
    operators = given.middle(left, right) @ np.linalg.inv(left.T @ (given.skipping @ right))
    random = np.random.default_rng(seed)
    found = []
    for _ in range(TRIALS):
        _, vectors = np.linalg.eig(np.tensordot(random.standard_normal(len(operators)), operators, 1))
        emission = np.einsum("hi,xij,jh->hx", np.linalg.pinv(vectors), operators, vectors).real
        found.append(with_transitions(given, distributions(emission)))
    return min(found, key=lambda model: misfit(given, model))


def initial(given: Moments, states: int, seed: int = 0, draws: int = 10) -> Probabilities:
    """An initialisation for EM or gradient training: the best of the anchor estimate and several eigenvector estimates.

    The most promising candidates are refined by EM on the triples before they are compared. The result is smoothed, so
    that it has no zeros."""
    found = by_anchors(given, states), *(by_eigenvectors(given, states, seed + draw) for draw in range(draws))
    best = sorted(found, key=lambda model: misfit(given, model))[:IMPROVED]
    return min((improved(given, model) for model in best), key=lambda model: misfit(given, model)).smoothed(SMOOTHING)


def improved(given: Moments, model: Probabilities, rounds: int = ROUNDS) -> Probabilities:
    """Improve a model by EM on N weighted triples of symbols. With m states, an iteration takes O(N m^2), whatever the
    length of the text."""
    for _ in range(rounds):
        start, transition, emission = model.smoothed(SMOOTHING)
        late, here, early = (emission[:, symbols].T for symbols in given.triples)  # [N, m]
        first = start * early
        second = (first @ transition) * here
        after = late @ transition.T  # p(x_3 | z_2)
        onward = (here * after) @ transition.T  # p(x_2, x_3 | z_1)
        shares = (given.shares / (first * onward).sum(1))[:, None]
        visits = first * onward * shares, second * after * shares, (second @ transition) * late * shares
        moves = transition * ((first * shares).T @ (here * after) + (second * shares).T @ late)
        seen = np.stack([[np.bincount(x, z, emission.shape[1]) for z in visit.T]
                         for x, visit in zip(given.triples[::-1], visits, strict=True)]).sum(0)  # fmt: skip
        model = Probabilities(visits[0].sum(0), distributions(moves), distributions(seen))
    return model


def misfit(given: Moments, model: Probabilities) -> float:
    """The cross-entropy of the observed triples under a model, in nats per triple."""
    start, transition, emission = model.smoothed(SMOOTHING)
    late, here, early = (emission[:, symbols].T for symbols in given.triples)
    expected = ((((start * early) @ transition) * here) @ transition * late).sum(1)
    return float(-given.shares @ np.log(expected))


def by_anchors(given: Moments, states: int, smallest: float = 1e-3) -> Probabilities:
    """An estimate that assumes that each state has an anchor, a word that no other state emits.

    The neighbours of any word x are then a mixture of the neighbours of the anchors, with weights p(state | x). An
    anchor must have a frequency of at least `smallest`."""
    contexts = neighbours(given.pairs.toarray())
    frequent = np.flatnonzero(given.single >= smallest)
    if len(frequent) < states:
        raise TrellisError(f"Only {len(frequent)} symbols are frequent enough to be anchors of {states} states.")
    anchors = frequent[extreme_rows(contexts[frequent], states)]
    heavy = 1e3  # weight of the row that makes shares sum to one
    corners = np.vstack([contexts[anchors].T, np.full(states, heavy)])
    share = np.array([nnls(corners, np.append(row, heavy))[0] for row in contexts])  # p(z | x): [V, K]
    return with_transitions(given, distributions((share * given.single[:, None]).T))


def by_cooccurrence(
    given: Moments, states: int, seed: int = 0, penalty: float = PENALTY, starts: int = 10, steps: int = 3000
) -> Probabilities:
    """The model whose pairs of symbols are closest to the counted pairs in KL divergence. The best of several starts is
    kept.

    Since pairs alone do not identify a model, a penalty prefers a small |det Theta|, where Theta is the joint
    distribution of adjacent states."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (starts, states, states), (starts, states, len(given.single))
    moves, words = (torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes)
    omega = frequencies(sparse.csr_array(given.pairs.T))
    found = match([moves, words], lambda: (moves.softmax(-1), words.softmax(-1)), omega, "kl", penalty, steps, lr=0.05)
    transition, emission = (logits[found.best.argmin()].detach().softmax(-1) for logits in (moves, words))
    return Probabilities(stationary(transition).numpy(), transition.numpy(), emission.numpy())


def neighbours(pairs: Array) -> Array:
    """The distributions of the successors and predecessors of every symbol, concatenated: [V, 2V]."""
    return np.concatenate([distributions(pairs.T), distributions(pairs)], 1)


def extreme_rows(points: Array, count: int) -> NDArray[np.int64]:
    """Indices of rows chosen by successive projection: repeatedly select the longest row, and project it out of the
    others."""
    rest, chosen = points.copy(), []
    for _ in range(count):
        chosen.append(int((rest**2).sum(1).argmax()))
        direction = rest[chosen[-1]] / np.linalg.norm(rest[chosen[-1]])
        rest -= np.outer(rest @ direction, direction)
    return np.array(chosen)


def with_transitions(given: Moments, emission: Array) -> Probabilities:
    """A model with these emission probabilities O. The start pi solves P1 = O pi by non-negative least squares, and the
    transitions T solve P21 = O (T' diag(pi)) O' by the pseudoinverse of O."""
    start = nnls(emission.T, given.single)[0]
    inverse = np.linalg.pinv(emission.T)  # [K, V]
    joint = (inverse @ (given.pairs @ inverse.T)).T  # p(z, z')
    return Probabilities(distributions(start), distributions(joint), emission)


def distributions(weights: Array) -> Array:
    """Clip negative weights to zero and normalise the rows; a zero row becomes uniform."""
    clipped = weights.clip(0.0)
    total = clipped.sum(-1, keepdims=True)
    return np.where(total > 0, clipped / np.where(total > 0, total, 1.0), 1 / weights.shape[-1])
