"""Run checks, and compare numbers within a tolerance."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.int64: 0.0}
Check = Callable[[Any], None]  # takes a case; its docstring is the claim that it checks


def require(holds: object, sentence: str) -> None:
    """Raise an AssertionError with this sentence unless the condition holds."""
    if not holds:
        raise AssertionError(sentence)


def assert_close(actual: Tensor, expected: Tensor | np.ndarray, tolerance: float | None = None, what: str = "") -> None:
    """Assert equality within the tolerance of the dtype; infinities must match, and NaN fails."""
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    wanted = expected.detach().numpy() if isinstance(expected, Tensor) else expected
    found = actual.detach().numpy()
    require(not np.isnan(found).any(), f"{what}: there is a NaN" if what else "there is a NaN")
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=what)


def run_checks(name: str, case: Any, checks: Iterable[Check]) -> None:
    """Run all checks of a case; raises one AssertionError that lists all failed checks."""
    failed: list[tuple[str, Exception]] = []
    tried = 0
    for check in checks:
        tried += 1
        try:
            check(case)
        except Exception as error:
            failed.append((claim(check), error))
    if failed:
        reasons = [indented(error) for _, error in failed]
        shown = [reason if reason not in reasons[:i] else "    the same" for i, reason in enumerate(reasons)]
        lines = [f"- {said}\n{reason}" for (said, _), reason in zip(failed, shown, strict=True)]
        raise AssertionError("\n".join([f"{name}: {len(failed)} of {tried} checks fail.", *lines])) from failed[0][1]


def claim(check: Check) -> str:
    return " ".join((check.__doc__ or str(check)).split())


def indented(error: Exception) -> str:
    """The indented message of an error, with its type unless it is an AssertionError."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return "\n".join(f"    {line}" for line in f"{kind}{error}".strip().splitlines())
