"""Lagged covariances of one-hot words, Psi_k = E[w_{t+k} w_t'], as linear operators: sparse minus low rank, diagonal
minus rank one. The words w_t are in the coordinates of `parameters.Whitening`."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from trellis.corpus.moments import Moments
from trellis.families.lds.parameters import Whitening

COLUMNS = 16  # columns multiplied by a Hankel matrix at a time


class Lagged(LinearOperator):
    """The covariance of words at one lag: scale (counts / T) scale - left right', [n, n]."""

    def __init__(self, counts: sparse.csr_array, total: float, scale: np.ndarray, left: np.ndarray, right: np.ndarray):
        super().__init__(np.float64, counts.shape)
        self.counts, self.total, self.scale, self.left, self.right = counts, total, scale[:, None], left, right

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(self.counts, self.left, self.right, x)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(self.counts.T, self.right, self.left, x)

    def _product(self, counts: sparse.sparray, left: np.ndarray, right: np.ndarray, x: np.ndarray) -> np.ndarray:
        found = counts @ (self.scale * x)
        found *= self.scale / self.total
        found -= left @ (right.T @ x)
        return found


class Covariances:
    """Psi_0 .. Psi_r of a text. Unless the text was counted as circular, each lag is centred by its own marginals."""

    def __init__(self, moments: Moments, pseudocount: float = 0.0, prior: float = 0.0, whiten: bool = True):
        """`pseudocount` is added to the count of every word, which reduces the scale of rare words; `prior` adds to the
        noise of every word."""
        self.moments, self.tokens = moments, moments.tokens
        self.tempering = pseudocount, prior, whiten
        shares = pseudocount / self.tokens, prior / self.tokens
        self.coordinates = Whitening(moments.counts / self.tokens, *shares, whiten)

    @property
    def lags(self) -> int:
        return len(self.moments.lags)

    def __getitem__(self, lag: int) -> Lagged:
        scale, mean = self.coordinates.scale, self.coordinates.mean
        if lag == 0:
            counts = sparse.dia_array((self.moments.counts[None].astype(float), [0]), shape=(len(mean), len(mean)))
            return Lagged(counts.tocsr(), self.tokens, scale, mean[:, None], mean[:, None])
        counts = self.moments.lags[lag - 1]
        if self.moments.circular:
            return Lagged(counts, self.tokens, scale, mean[:, None], mean[:, None])
        total = counts.sum()
        later, earlier = (scale * np.asarray(counts.sum(axis)) / total for axis in (1, 0))
        return Lagged(counts, total, scale, later[:, None], earlier[:, None])


class Hankel(LinearOperator):
    """The block Hankel matrix, its blocks in reverse order: block (i, j) of r x r is Psi_{i + r - j}: [r n, r n]."""

    def __init__(self, covariances: Covariances, blocks: int):
        size = len(covariances.coordinates.scale)
        super().__init__(np.float64, (blocks * size, blocks * size))
        self.blocks, self.size = blocks, size
        self.lagged = [covariances[lag] for lag in range(1, 2 * blocks)]

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, flipped=False)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, flipped=True)

    def _product(self, x: np.ndarray, flipped: bool) -> np.ndarray:
        """Multiply a few columns at a time, so that intermediate results stay in cache."""
        out, begins = np.empty_like(x), range(0, x.shape[1], COLUMNS)
        pieces = x.reshape(self.blocks, self.size, -1)
        found = in_turn(lambda begin: self._sums(pieces[..., begin : begin + COLUMNS], flipped), begins)
        for begin, columns in zip(begins, found, strict=True):
            out[:, begin : begin + COLUMNS] = columns
        return out

    def _sums(self, pieces: np.ndarray, flipped: bool) -> np.ndarray:
        """Multiply each lag once with all the pieces that need it."""
        out = np.zeros(pieces.shape)
        for offset, lag in enumerate(self.lagged, 1 - self.blocks):  # offset = i - j
            rows = np.arange(max(0, offset), min(self.blocks, self.blocks + offset))
            to, of = (rows - offset, rows) if flipped else (rows, rows - offset)
            product = (lag.rmatmat if flipped else lag.matmat)(np.concatenate(pieces[of], axis=1))
            out[to] += np.stack(np.split(product, len(rows), axis=1))
        return out.reshape(self.blocks * self.size, -1)


def in_turn(work: Callable[[int], np.ndarray], items: Sequence[int], workers: int = 2) -> Iterator[np.ndarray]:
    """Yield results in order while the next ones are computed in the background."""
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(work, item) for item in items[:workers]]
        for item in [*items[workers:], *[None] * workers]:
            if waiting:
                yield waiting.pop(0).result()
            if item is not None:
                waiting.append(pool.submit(work, item))
