"""The map of states: groups of states placed by t-SNE, and the states of each group around its centre by PCA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

DIMENSIONS = 32  # of the principal components that distances are computed in
MOST_CENTRES = 1_000  # points of one t-SNE
FEWEST, FEW = 12, 300  # points below which PCA replaces t-SNE; points below which exact t-SNE is faster
PERPLEXITY, START = 15.0, 1e-4  # of t-SNE: neighbours of a point, and the standard deviation of the first positions
STATES_PER_GROUP = 12  # if a model has no classes
SPREAD = 0.45  # the radius of the largest group, as a share of the distance to the nearest other centre
SMALLEST = 1e-9
Report = Callable[[float], None]


class Layout(NamedTuple):
    """Positions in a square around 0 of K states in C groups."""

    points: np.ndarray  # [K, 2]
    centres: np.ndarray  # [C, 2]
    groups: np.ndarray  # [K]


def place_states(vectors: np.ndarray, groups: np.ndarray | None = None, report: Report = lambda done: None) -> Layout:
    """The layout of states with vectors [K, d]. Without `groups` [K], similar states are grouped by k-means."""
    reduced = principal(vectors, DIMENSIONS)
    report(0.1)
    if groups is None:
        groups = clusters(reduced, -(-len(reduced) // STATES_PER_GROUP))
        if len(reduced) <= MOST_CENTRES:
            points = place_centres(reduced)
            return scaled(points, group_means(points, groups), groups)
    report(0.3)
    centres = place_centres(group_means(reduced, groups))
    report(0.8)
    sizes = np.bincount(groups, minlength=len(centres))
    radius = SPREAD * nearest_distances(centres) * np.sqrt(sizes / sizes.max())
    points, order = np.empty((len(reduced), 2)), np.argsort(groups, kind="stable")
    for group, members in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
        points[members] = centres[group] + radius[group] * in_disc(principal(reduced[members], 2))
    report(1.0)
    return scaled(points, centres, groups)


def scaled(points: np.ndarray, centres: np.ndarray, groups: np.ndarray) -> Layout:
    """A layout in the square from -1 to 1."""
    middle = (points.max(0) + points.min(0)) / 2
    scale = max(float(np.abs(points - middle).max()), SMALLEST)
    placed, centred = (((some - middle) / scale).astype(np.float32) for some in (points, centres))
    return Layout(placed, centred, groups.astype(np.int64))


def group_means(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean vector of each group: [C, d]; zero for an empty one."""
    sizes = np.bincount(groups)
    means = np.zeros((len(sizes), vectors.shape[1]))
    np.add.at(means, groups, vectors)
    return means / np.maximum(sizes, 1)[:, None]


def principal(vectors: np.ndarray, dimensions: int) -> np.ndarray:
    """The first principal components of vectors [n, d]: [n, min(n, d, dimensions)], padded to two columns."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, 0, dtype=np.float64)
    values, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, np.argsort(-values, kind="stable")[: min(dimensions, *centred.shape)]]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    found = centred @ (axes * np.where(signs == 0, 1.0, signs))
    return np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))


def in_disc(points: np.ndarray) -> np.ndarray:
    """Points [n, 2] placed in a disc of radius 1. Distances from the centre are replaced by ranks, so that outliers do
    not squeeze the other points together."""
    distance = np.hypot(*points.T)
    rank = np.empty(len(points))
    rank[np.argsort(distance, kind="stable")] = np.arange(1, len(points) + 1)
    radius = np.sqrt((rank - 0.5) / max(1, len(points))) if len(points) > 1 else np.zeros(len(points))
    return points / np.maximum(distance, SMALLEST)[:, None] * radius[:, None]


def place_centres(means: np.ndarray) -> np.ndarray:
    """The centres of groups [C, 2]. Too many for one t-SNE are grouped themselves."""
    if len(means) > MOST_CENTRES:
        return place_states(means, clusters(means, MOST_CENTRES // 4)).points.astype(np.float64)
    flat = principal(means, 2)[:, :2]
    spread = float(flat[:, 0].std())
    if len(means) < FEWEST or spread < SMALLEST:
        return flat
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(means) - 1) / 3)
    method = "exact" if len(means) < FEW else "barnes_hut"
    tsne = TSNE(2, perplexity=perplexity, init=START / spread * flat, random_state=0, method=method)
    return tsne.fit_transform(means).astype(np.float64)


def nearest_distances(points: np.ndarray) -> np.ndarray:
    """The distance from each point to the nearest other one, [n]; 1 for a single point."""
    if len(points) < 2:
        return np.ones(len(points))
    from scipy.spatial import cKDTree

    return cKDTree(points).query(points, k=2)[0][:, 1]


def clusters(vectors: np.ndarray, n: int) -> np.ndarray:
    """Groups of similar vectors, by k-means, numbered by the order of their first member: [n]."""
    if n < 2 or len(vectors) <= n:
        return np.zeros(len(vectors), np.int64) if n < 2 else np.arange(len(vectors))
    from sklearn.cluster import MiniBatchKMeans

    labels = MiniBatchKMeans(n, random_state=0, n_init=1, batch_size=4096).fit_predict(vectors)
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[labels]


def restored(arrays: Mapping[str, np.ndarray], states: int) -> Layout | None:
    """The layout among arrays read from a file, if it is there and sound."""
    if not all(name in arrays for name in Layout._fields):
        return None
    layout = Layout(*(arrays[name] for name in Layout._fields))
    return layout if is_sound(layout, states) else None


def is_sound(layout: Layout, states: int) -> bool:
    """Whether a layout read from disk has the right shapes and finite positions."""
    points, centres, groups = layout
    shapes = points.shape == (states, 2) and centres.ndim == 2 and centres.shape[1] == 2 and groups.shape == (states,)
    if not shapes or points.dtype.kind != "f" or centres.dtype.kind != "f" or groups.dtype.kind != "i":
        return False
    inside = bool(((groups >= 0) & (groups < len(centres))).all())
    return inside and bool(np.isfinite(points).all() and np.isfinite(centres).all())
