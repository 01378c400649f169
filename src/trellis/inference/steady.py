"""The steady state of a Kalman filter and smoother: the limits of their covariances and gains.

x_t = A x_{t-1} + N(0, Q), and an observation has the potential exp(-x' Phi x / 2 + eta_t' x). Matrices are [h, h]:
    Sigma_1 = A Sigma_0 A' + Q,  Sigma_0 = (Sigma_1^-1 + Phi)^-1     (discrete algebraic Riccati equation)
    filter    x^_t = H x^_{t-1} + Sigma_0 eta_t,  H = A - Sigma_0 Phi A
    smoother  x-_t = J x-_{t+1} + P x^_t,  J = Sigma_0 A' Sigma_1^-1,  P = I - J A"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from scipy import linalg

from trellis.errors import TrellisError

ROUNDS, CONVERGED, EXACT = 60, 1e-13, 1e-10


class Steady(NamedTuple):
    predicted: np.ndarray  # Sigma_1 = Cov(x_t | y_<t)
    filtered: np.ndarray  # Sigma_0 = Cov(x_t | y_<=t)
    smoothed: np.ndarray  # Lambda_0 = Cov(x_t | y)
    forget: np.ndarray  # H
    back: np.ndarray  # J
    keep: np.ndarray  # P


def steady_state(transition: np.ndarray, noise: np.ndarray, information: np.ndarray) -> Steady:
    """The steady state from A, Q and Phi."""
    check_stable(transition)
    eye = np.eye(len(transition))
    predicted = riccati(transition, noise, information)
    filtered = symmetric(np.linalg.solve(eye + predicted @ information, predicted))
    back = np.linalg.solve(predicted, transition @ filtered).T
    smoothed = lyapunov(back, symmetric(filtered - back @ predicted @ back.T))
    forget = transition - filtered @ information @ transition
    return Steady(predicted, filtered, smoothed, forget, back, eye - back @ transition)


def check_stable(transition: np.ndarray) -> None:
    radius = spectral_radius(transition)
    if not radius < 1:
        raise TrellisError(f"The transition is unstable: its spectral radius is {radius:.4f}; it must be below 1.")


def riccati(transition: np.ndarray, noise: np.ndarray, information: np.ndarray) -> np.ndarray:
    """Sigma_1 by doubling, which is fast, or by scipy if doubling fails or is inaccurate."""
    with suppress(np.linalg.LinAlgError, TrellisError):
        found = doubling(transition, noise, information)
        if riccati_residual(found, transition, noise, information) <= EXACT * np.abs(found).max():
            return found
    return schur(transition, noise, information)


def schur(transition: np.ndarray, noise: np.ndarray, information: np.ndarray) -> np.ndarray:
    """Sigma_1 by scipy's Schur method."""
    values, vectors = np.linalg.eigh(symmetric(information))
    root = vectors * np.sqrt(values.clip(0))
    try:
        return symmetric(linalg.solve_discrete_are(transition.T, root, noise, np.eye(len(root))))
    except (np.linalg.LinAlgError, ValueError) as error:
        raise TrellisError("The filter has no steady state: its transition is too close to unstable.") from error


def riccati_residual(
    predicted: np.ndarray, transition: np.ndarray, noise: np.ndarray, information: np.ndarray
) -> float:
    """The residual of Sigma_1 in its equation."""
    filtered = np.linalg.solve(np.eye(len(predicted)) + predicted @ information, predicted)
    return float(np.abs(transition @ filtered @ transition.T + noise - predicted).max())


def doubling(transition: np.ndarray, noise: np.ndarray, information: np.ndarray) -> np.ndarray:
    """Sigma_1 by doubling: each iteration doubles the number of steps covered."""
    step, gathered, seen = transition.T, noise.copy(), information.copy()
    for _ in range(ROUNDS):
        inverse = np.linalg.inv(np.eye(len(step)) + seen @ gathered)
        more = step.T @ gathered @ inverse @ step
        seen = seen + step @ inverse @ seen @ step.T
        gathered, step = symmetric(gathered + more), step @ inverse @ step
        if np.abs(more).max() <= CONVERGED * np.abs(gathered).max():
            return gathered
    raise TrellisError("Cannot find the steady state of the filter: doubling did not converge.")


def stein(left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The X with X = left X right' + middle, by squaring; the product of both spectral radii must be below 1."""
    total = middle
    for _ in range(ROUNDS):
        more = left @ total @ right.T
        total, left, right = total + more, left @ left, right @ right
        if np.abs(more).max(initial=0) <= CONVERGED * np.abs(total).max(initial=0):
            return total
    raise TrellisError("Cannot solve for a covariance: the transition is too close to unstable.")


def lyapunov(left: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """The X with X = left X left' + middle, for a symmetric middle."""
    return symmetric(stein(left, middle, left))


def spectral_radius(matrix: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


def symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
