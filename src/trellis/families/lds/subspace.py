"""Subspace identification: a linear dynamical system from lagged covariances alone, by a randomised SVD.

The block Hankel matrix of the covariances is Gamma Delta_r, Gamma = [C; C A; ...], Delta_r = [... A G, G]."""

from typing import NamedTuple

import numpy as np
from scipy import linalg

from trellis.errors import TrellisError
from trellis.families.lds.covariance import Covariances, Hankel
from trellis.families.lds.parameters import Parameters, Whitening, whiten_state
from trellis.inference.steady import lyapunov, spectral_radius, symmetric

OVERSAMPLING, POWER_STEPS = 10, 2
LARGEST_RADIUS, LARGEST_SHARE = 0.98, 0.98  # spectral radius; explained share of a direction's variance
RANDOM_RADIUS = 0.7
SMALLEST = 1e-9  # relative cutoff of singular values


class Spectrum(NamedTuple):
    """System matrices from the SVD of the Hankel matrix, in arbitrary state coordinates."""

    transition: np.ndarray  # A
    loadings: np.ndarray  # C
    forward: np.ndarray  # G = E[x_{t+1} w_t']


def identify(covariances: Covariances, dim: int, blocks: int = 4, seed: int = 0) -> dict[str, Parameters]:
    """Two candidates that differ in the state noise.

    - "unit" assumes white state noise in the coordinates of the SVD, and is often better on text.
    - "moments" solves for the state noise, and is exact on the moments of an LDS."""
    spectrum = decompose(covariances, dim, blocks, seed)
    return {name: start(spectrum, covariances.coordinates) for name, start in CANDIDATES.items()}


def decompose(covariances: Covariances, dim: int, blocks: int, seed: int) -> Spectrum:
    if covariances.lags < 2 * blocks - 1:
        raise TrellisError(f"{blocks} blocks need {2 * blocks - 1} lags, but {covariances.lags} were counted.")
    size = len(covariances.coordinates.scale)
    if not 0 < dim < size:
        raise TrellisError(f"The hidden vector has {dim} dimensions; with {size:,} words, use 1 to {size - 1:,}.")
    left, values, right = randomised_svd(Hankel(covariances, blocks), dim, seed)
    if values[-1] <= SMALLEST * values[0]:
        rank = int((values > SMALLEST * values[0]).sum())
        raise TrellisError(f"The hidden vector has {dim} dimensions, but the text's rank is {rank}; use {rank}.")
    root = np.sqrt(values)
    past = (root[:, None] * right).reshape(dim, blocks, size)  # Delta_r
    newer, older = past[:, :-1].reshape(dim, -1), past[:, 1:].reshape(dim, -1)
    transition = np.linalg.solve(older @ older.T, older @ newer.T).T
    transition *= min(1.0, LARGEST_RADIUS / max(spectral_radius(transition), 1e-300))
    return Spectrum(transition, left[:size] * root, past[:, -1])


def randomised_svd(
    matrix: Hankel, rank: int, seed: int, power_steps: int = POWER_STEPS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest `rank` singular values and vectors, by matrix products alone."""
    width = min(rank + OVERSAMPLING, matrix.shape[0])
    basis = np.random.default_rng(seed).standard_normal((matrix.shape[1], width))
    basis, _ = orthonormal(matrix.matmat(basis))
    for _ in range(power_steps):
        basis, _ = orthonormal(matrix.rmatmat(basis))
        basis, _ = orthonormal(matrix.matmat(basis))
    right, small = orthonormal(matrix.rmatmat(basis))
    left, values, turn = np.linalg.svd(small.T)
    return (basis @ left)[:, :rank], values[:rank], (right @ turn.T).T[:rank]


def orthonormal(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """QR of tall, thin columns: by Cholesky of the Gram matrix, twice; by Householder if that fails."""
    factor = np.eye(columns.shape[1])
    try:
        basis = columns
        for _ in range(2):
            root = np.linalg.cholesky(basis.T @ basis)
            basis = linalg.solve_triangular(root, basis.T, lower=True).T
            factor = root.T @ factor
    except np.linalg.LinAlgError:
        return np.linalg.qr(columns)
    return basis, factor


def with_unit_noise(spectrum: Spectrum, coordinates: Whitening) -> Parameters:
    """The candidate with state noise Q = I."""
    variance = lyapunov(spectrum.transition, np.eye(len(spectrum.transition)))
    return bounded_system(spectrum, variance, np.eye(len(variance)), coordinates)


def with_matched_noise(spectrum: Spectrum, coordinates: Whitening) -> Parameters:
    """The candidate with Var x = A^-1 G C (C'C)^-1 and Q = Var x - A Var x A', both made positive definite."""
    transition, loadings, forward = spectrum
    variance = np.linalg.solve(transition, forward @ loadings @ np.linalg.inv(loadings.T @ loadings))
    noise = positive(variance - transition @ (variance := positive(variance)) @ transition.T)
    return bounded_system(spectrum, lyapunov(transition, noise), noise, coordinates)


CANDIDATES = {"unit": with_unit_noise, "moments": with_matched_noise}


def random_start(covariances: Covariances, dim: int, seed: int = 0) -> Parameters:
    """An initialisation for comparison: a slowly decaying random rotation of the state, and random loadings."""
    generator, coordinates = np.random.default_rng(seed), covariances.coordinates
    turn, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
    loadings = generator.standard_normal((len(coordinates.scale), dim)) * np.sqrt(coordinates.delta)[:, None]
    loadings -= np.outer(coordinates.null, coordinates.null @ loadings)
    return with_unit_noise(Spectrum(RANDOM_RADIUS * turn, loadings, loadings.T), coordinates)


def bounded_system(spectrum: Spectrum, variance: np.ndarray, noise: np.ndarray, coordinates: Whitening) -> Parameters:
    """Transform to white state noise, and scale C down until the observation noise is a valid covariance."""
    transition, loadings, _ = spectrum
    overlap = loadings.T @ (loadings / coordinates.delta[:, None])
    root = np.linalg.cholesky(variance)
    share = np.linalg.eigvalsh(root.T @ overlap @ root).max()
    if share > LARGEST_SHARE:
        loadings = loadings * np.sqrt(LARGEST_SHARE / share)
    return whiten_state(transition, loadings, variance, noise)


def positive(matrix: np.ndarray) -> np.ndarray:
    """The nearest symmetric matrix without very small or negative eigenvalues."""
    values, vectors = np.linalg.eigh(symmetric(matrix))
    return (vectors * values.clip(1e-6 * values.max())) @ vectors.T
