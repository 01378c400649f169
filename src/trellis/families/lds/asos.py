"""EM with approximate second-order statistics (ASOS): the E-step needs only the lagged covariances of a text.

At the steady state x^_t = E[x_t | w_<=t] and x-_t = E[x_t | w] follow linear recursions, and so do their covariances:
    Y_k = E[w_{t+k} x^_t'] = Y_{k+1} H' + Psi_k K'
    Z_k = E[x^_{t+k} w_t'] = H Z_{k-1} + K Psi_k,  Z_0 = Y_0'
    X_k = E[x^_{t+k} x^_t'] = X_{k+1} H' + Z_k K'
closed at the horizon r by the model's own prediction, Y_{r+1} = C A X_r. Here Psi_k is the
covariance of the text at lag k, K the gain and H = A - K C A. An iteration costs O(distinct pairs x h + r n h^2),
independent of the length of the text."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from trellis.families.lds.covariance import Covariances, in_turn
from trellis.families.lds.parameters import IndefiniteError, OneHot, Parameters, Whitening, restrict_noise, whiten_state
from trellis.inference.steady import Steady, check_stable, lyapunov, steady_state, stein, symmetric

ROUNDS, SETTLED = 200, 1e-13


class Filter:
    """The steady-state filter of a system over one-hot words."""

    def __init__(self, parameters: Parameters, coordinates: Whitening):
        self.transition = parameters.transition  # A
        self.emission: OneHot = parameters.emission(coordinates)
        self.steady: Steady = steady_state(self.transition, np.eye(len(self.transition)), self.emission.information)

    @cached_property
    def gain(self) -> np.ndarray:
        """The transposed Kalman gain K': [n, h]."""
        return self.emission.sensing @ self.steady.filtered

    @cached_property
    def forecast(self) -> np.ndarray:
        """The forecast matrix C A: [n, h]."""
        return self.emission.loadings @ self.transition


class Statistics(NamedTuple):
    """Posterior expectations, averaged over the text."""

    state: np.ndarray  # E[x_t x_t'] [h, h]
    moved: np.ndarray  # E[x_{t+1} x_t'] [h, h]
    words: np.ndarray  # E[w_t x_t'] [n, h]
    smoothed: np.ndarray  # E[x-_t x-_t'] [h, h]: the spread of the token vectors
    log_likelihood: float  # nats per token, under the parameters of this E-step


class Sweep(NamedTuple):
    """The recursions before closing the horizon (as if X_r = 0)."""

    ahead: np.ndarray  # Y_1 [n, h]
    words: np.ndarray  # F_0' [n, h], F_0 = sum_{k<r} J^k P Z_k + J^r Z_r
    spread: list[np.ndarray]  # Z_k K' [h, h], k = 0..r


def sweep(model: Filter, covariances: Covariances, horizon: int, workers: int) -> Sweep:
    """The recursions over lags, the only part whose cost depends on the number n of words: two products with the
    covariance at every lag, Psi_k K' and Psi_k' K'. Only a few [n, h] arrays are in memory."""
    _, _, _, H, J, P = model.steady
    gain = model.gain
    ahead = now = np.zeros_like(gain)  # Y_{k+1}, Y_k
    for product in in_turn(lambda k: covariances[k].matmat(gain), range(horizon, -1, -1), workers):
        ahead, now = now, now @ H.T + product
    into = [np.linalg.matrix_power(J, horizon).T]  # the factor of Psi_k' K' in F_0', k = 0..r
    for k in range(horizon - 1, -1, -1):
        into.insert(0, (np.linalg.matrix_power(J, k) @ P).T + H.T @ into[0])
    words, spread = now @ into[0], [now.T @ gain]
    for k, product in enumerate(in_turn(lambda k: covariances[k].rmatmat(gain), range(1, horizon + 1), workers), 1):
        words += product @ into[k]
        spread.append(H @ spread[-1] + product.T @ gain)
    return Sweep(ahead, words, spread)


def expect(parameters: Parameters, covariances: Covariances, horizon: int, workers: int = 2) -> Statistics:
    """The E-step."""
    model = Filter(parameters, covariances.coordinates)
    _, _, smoothed, H, J, P = model.steady
    A, forecast, inner = model.transition, model.forecast, model.gain.T @ model.forecast  # A, C A, K C A
    ahead, words, spread = sweep(model, covariances, horizon, workers)
    powers = [np.linalg.matrix_power(H, k) for k in range(2 * horizon + 2)]
    steps = [np.linalg.matrix_power(J, k) for k in range(horizon + 1)]
    far = close_horizon(A, H, powers[-1], inner, spread[horizon])  # X_r
    ahead += forecast @ (far @ powers[horizon].T)
    reached = sum((steps[k] @ P @ powers[horizon + 1 + k] for k in range(horizon)), steps[horizon] @ powers[-1])
    words += forecast @ (far @ reached.T)
    crossed = [far]  # X_0 .. X_r
    for k in range(horizon - 1, -1, -1):
        crossed.insert(0, crossed[0] @ H.T + spread[k] + powers[horizon + 1 + k] @ far.T @ inner.T)
    toward = far  # G_k = E[x-_{t+k} x^_t'], down to k = 1
    for k in range(horizon - 1, 0, -1):
        toward = J @ toward + P @ crossed[k]
    now, mixed = symmetric(crossed[0]), J @ toward @ P.T
    means = lyapunov(J, symmetric(mixed + mixed.T + P @ now @ P.T))
    moved = means @ J.T + toward @ P.T
    return Statistics(means + smoothed, moved + smoothed @ J.T, words, means, log_likelihood(model, ahead, now))


def close_horizon(
    transition: np.ndarray, forget: np.ndarray, power: np.ndarray, inner: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """The X with X = A X H' + H^(2r+1) X' (K C A)' + known."""
    term = total = stein(transition, known, forget)
    for _ in range(ROUNDS):
        term = stein(transition, power @ term.T @ inner.T, forget)
        total = total + term
        if np.abs(term).max() <= SETTLED * np.abs(total).max():
            break
    return total


def log_likelihood(model: Filter, ahead: np.ndarray, spread: np.ndarray) -> float:
    """Nats per token, as a density of the one-hot vector, from Y_1 = E[w_{t+1} x^_t'] and X_0 = E[x^_t x^_t']."""
    emission, steady, A = model.emission, model.steady, model.transition
    information, size = emission.information, len(ahead)
    seen = np.eye(len(A)) - steady.filtered @ information
    observed = emission.coordinates.product(emission.scaled)
    own = emission.coordinates.total()  # tr(D^-1 Psi_0), term by term
    own += np.trace((emission.surplus - emission.lift.T @ steady.filtered @ emission.lift) @ observed)
    cross = np.trace(A @ (ahead.T @ emission.sensing) @ seen)
    square = np.trace(A @ spread @ A.T @ information @ seen)
    root = np.linalg.cholesky(steady.predicted)
    log_det = emission.log_det + np.linalg.slogdet(np.eye(len(A)) + root.T @ information @ root)[1]
    inside = -0.5 * ((size - 1) * np.log(2 * np.pi) + log_det + own - 2 * cross + square)
    return float(inside + emission.coordinates.log_volume)


def maximise(statistics: Statistics) -> Parameters:
    """The M-step, transformed to coordinates in which the state noise is white."""
    inverse = np.linalg.inv(statistics.state)
    transition = statistics.moved @ inverse
    noise = symmetric(statistics.state - transition @ statistics.moved.T)
    try:
        return whiten_state(transition, statistics.words @ inverse, statistics.state, noise)
    except np.linalg.LinAlgError as error:
        raise IndefiniteError(
            "The state noise would have a negative variance, so EM stops here; use fewer "
            "iterations, a longer horizon or a smaller hidden vector."
        ) from error


def update(statistics: Statistics, covariances: Covariances, noise: str = "full") -> Parameters:
    """The M-step, checked: raises TrellisError if the approximation no longer yields a stable, valid system."""
    parameters = restrict_noise(maximise(statistics), covariances.coordinates, noise)
    check_stable(parameters.transition)
    parameters.emission(covariances.coordinates)
    return parameters
