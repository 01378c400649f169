"""Lagged covariances of one-hot words, never written out: sparse minus low rank, diagonal minus rank one.

Psi_k = E[w_{t+k} w_t'], the words w_t in the coordinates of `trellis.emissions.onehot`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from trellis.corpus.moments import Moments
from trellis.emissions.onehot import Whitening


class Lagged(LinearOperator):
    """scale (counts / T) scale - left right', [n, n]."""

    def __init__(self, counts: sparse.csr_array, total: float, scale: np.ndarray, left: np.ndarray, right: np.ndarray):
        super().__init__(np.float64, counts.shape)
        self.counts, self.total, self.scale, self.left, self.right = counts, total, scale[:, None], left, right

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self.scale * (self.counts @ (self.scale * x)) / self.total - self.left @ (self.right.T @ x)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self.scale * (self.counts.T @ (self.scale * x)) / self.total - self.right @ (self.left.T @ x)

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._matmat(x.reshape(-1, 1)).ravel()

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._rmatmat(x.reshape(-1, 1)).ravel()


class Covariances:
    """Psi_0 .. Psi_r of a counted text.

    Where it was not closed to a circle, each lag is centred by its own margins, or, with `sums`, the sum of its
    w_{t+k} w_t' / T."""

    def __init__(
        self, moments: Moments, pseudocount: float = 0.0, prior: float = 0.0, whiten: bool = True, sums: bool = False
    ):
        """`pseudocount` of each word tempers the whitening, `prior` of each word adds to the noise."""
        self.moments, self.tokens, self.sums = moments, moments.tokens, sums
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
        pairs = counts.sum()
        total = self.tokens if self.sums else pairs
        later, earlier = (scale * np.asarray(counts.sum(axis)) / total for axis in (1, 0))
        if not self.sums:
            return Lagged(counts, total, scale, later[:, None], earlier[:, None])
        left, right = np.stack([mean, later - pairs / total * mean], 1), np.stack([earlier, mean], 1)
        return Lagged(counts, total, scale, left, right)


class Hankel(LinearOperator):
    """The block matrix whose block (i, j) is Psi_{i + r - j}, i, j = 1..r, [r n, r n]; it needs 2 r - 1 lags."""

    def __init__(self, covariances: Covariances, blocks: int):
        size = len(covariances.coordinates.scale)
        super().__init__(np.float64, (blocks * size, blocks * size))
        self.blocks, self.size = blocks, size
        self.lagged = [covariances[lag] for lag in range(1, 2 * blocks)]

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._sums(x.reshape(self.blocks, self.size, -1), lambda lag, piece: lag.matmat(piece), False)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self._sums(x.reshape(self.blocks, self.size, -1), lambda lag, piece: lag.rmatmat(piece), True)

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._matmat(x.reshape(-1, 1)).ravel()

    def _sums(self, pieces: np.ndarray, apply: Callable[[Lagged, np.ndarray], np.ndarray], flipped: bool) -> np.ndarray:
        """Each lag meets the pieces that it is to be multiplied with all at once."""
        out, offsets = np.zeros_like(pieces), range(1 - self.blocks, self.blocks)  # i - j

        def places(offset: int) -> tuple[slice, slice]:
            rows, columns = (slice(max(0, side), min(self.blocks, self.blocks + side)) for side in (offset, -offset))
            return (columns, rows) if flipped else (rows, columns)

        def product(offset: int) -> np.ndarray:
            of = pieces[places(offset)[1]].transpose(1, 0, 2)
            return apply(self.lagged[offset + self.blocks - 1], of.reshape(self.size, -1))

        for offset, found in zip(offsets, in_turn(product, offsets), strict=True):
            out[places(offset)[0]] += found.reshape(self.size, -1, pieces.shape[2]).transpose(1, 0, 2)
        return out.reshape(self.blocks * self.size, -1)


def in_turn(work: Callable[[int], np.ndarray], items: Sequence[int], workers: int = 2) -> Iterator[np.ndarray]:
    """What comes of one item after the other; the next ones are worked on meanwhile."""
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(work, item) for item in items[:workers]]
        for item in [*items[workers:], *[None] * workers]:
            if waiting:
                yield waiting.pop(0).result()
            if item is not None:
                waiting.append(pool.submit(work, item))
