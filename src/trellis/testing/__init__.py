"""Conformance suites for transitions, emissions, parameterisations, families, readers and commands.

Each suite is a function that raises an AssertionError with a list of all failed checks, so that any test framework can
call it. The suites need no additional dependencies."""

from trellis.testing.commands import check_command
from trellis.testing.emissions import check_emission
from trellis.testing.families import check_family
from trellis.testing.parameters import check_parameters
from trellis.testing.readers import check_reader
from trellis.testing.transitions import check_transition

__all__ = ["check_command", "check_emission", "check_family", "check_parameters", "check_reader", "check_transition"]
