"""Conformance suites: what a transition, an emission, a parameterization, a family, a reader or a command must do.

Each is one function that raises an AssertionError with every claim that does not hold, so that any test framework can
call it, inside this repository and outside. It needs nothing that the library does not need."""

from trellis.testing.emissions import check_emission
from trellis.testing.parameters import check_parameters
from trellis.testing.transitions import check_transition

__all__ = ["check_emission", "check_parameters", "check_transition"]
