"""L-BFGS whose state can be saved: a resumed run takes exactly the same steps as an uninterrupted one."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import line_search

SEARCH = 20  # maximum number of iterations of a line search
REMEMBERED = np.float32  # type of the steps in memory; half the size of the points themselves
FLAT = 1e-10  # curvature below which a step is not remembered, relative to its length
HISTORY = "steps", "turns"
STATE = "point", "slope", *HISTORY

Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]  # point -> value and gradient


class LBFGS:
    """Minimises a function of a point [n] in steps. The curvature of the function is estimated from the last
    `history` steps."""

    def __init__(self, evaluate: Evaluate, point: np.ndarray, history: int) -> None:
        self.evaluate, self.point, self.history = evaluate, point, history
        self.steps, self.turns = list[np.ndarray](), list[np.ndarray]()  # of points and of gradients
        self.latest: tuple[np.ndarray, float, np.ndarray] | None = None
        self.value, self.slope = np.inf, point

    def advance(self) -> bool:
        """One iteration; returns whether the value has decreased."""
        if self.value == np.inf:
            self.value, self.slope = self.at(self.point)
        direction = self.direction()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # warnings about searches that fail
            functions = (lambda x: self.at(x)[0]), (lambda x: self.at(x)[1])
            length = line_search(*functions, self.point, direction, self.slope, self.value, maxiter=SEARCH)[0]
        if length is None and self.steps:
            self.steps, self.turns = [], []
            return self.advance()
        if length is None:
            return False
        point = self.point + length * direction
        value, slope = self.at(point)
        step, turn = point - self.point, slope - self.slope
        if step @ turn > FLAT * np.linalg.norm(step) * np.linalg.norm(turn):
            self.steps = [*self.steps, step.astype(REMEMBERED)][-self.history :]
            self.turns = [*self.turns, turn.astype(REMEMBERED)][-self.history :]
        decreased = value < self.value
        self.point, self.value, self.slope = point, value, slope
        return decreased

    def direction(self) -> np.ndarray:
        """The search direction: minus the gradient times the inverse Hessian, approximated by the two-loop recursion.

        Without remembered steps, it is minus the gradient, shortened to length one if it is longer."""
        found, weights = -self.slope, []
        if not self.steps:
            return found / max(1.0, float(np.linalg.norm(found)))
        inverse = [1 / (step.astype(float) @ turn) for step, turn in zip(self.steps, self.turns, strict=True)]
        for step, turn, scale in zip(self.steps[::-1], self.turns[::-1], inverse[::-1], strict=True):
            weights.append(scale * (step @ found))
            found = found - weights[-1] * turn
        found *= 1 / (inverse[-1] * np.square(self.turns[-1], dtype=float).sum())
        for step, turn, scale in zip(self.steps, self.turns, inverse, strict=True):
            found += (weights.pop() - scale * (turn @ found)) * step
        return found

    def at(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and gradient at a point; those of the latest point are remembered."""
        if self.latest is None or not np.array_equal(self.latest[0], point):
            self.latest = (point, *self.evaluate(point))
        return self.latest[1:]

    def state(self) -> dict[str, np.ndarray]:
        """The state, as arrays that `restore` accepts."""
        history = {name: np.reshape(getattr(self, name), (len(self.steps), len(self.point))) for name in HISTORY}
        return history | {"point": self.point, "slope": self.slope, "value": np.array([self.value])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state; raises ValueError if its points have another number of dimensions."""
        shapes = {name: state[name].shape[-1:] for name in STATE}
        if set(shapes.values()) != {self.point.shape} or state["steps"].shape != state["turns"].shape:
            raise ValueError("its points have another number of dimensions")
        self.point, self.slope = state["point"], state["slope"]
        self.steps, self.turns = ([row.copy() for row in state[name]] for name in HISTORY)
        self.value = float(state["value"][0])
