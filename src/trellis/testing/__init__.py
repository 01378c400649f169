"""Conformance suites: what a transition, an emission, a parameterization, a family, a reader or a command must do.

Each is one function that raises an AssertionError with every claim that does not hold, so that any test framework can
call it, inside this repository and outside. It needs nothing that the library does not need."""

from trellis.testing.commands import check_command
from trellis.testing.emissions import check_emission
from trellis.testing.families import check_family
from trellis.testing.parameters import check_parameters
from trellis.testing.readers import check_reader
from trellis.testing.transitions import check_transition

__all__ = ["check_command", "check_emission", "check_family", "check_parameters", "check_reader", "check_transition"]
