"""The reference: every public name has a docstring in numpydoc's form, and every parameter a meaning and a type."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import trellis
from trellis import constraints, hmm, testing, vhmm

MODULES = trellis, constraints, hmm, vhmm, testing
NAMES = sorted({f"{module.__name__}.{name}" for module in MODULES for name in module.__all__} - {"trellis.constraints"})

UNTYPED = {"Any", "typing.Any", str(inspect.Parameter.empty)}


def find(name: str) -> Any:
    module = next(module for module in MODULES if module.__name__ == name.rpartition(".")[0])
    return getattr(module, name.rpartition(".")[2])


def entries(thing: Any) -> list[tuple[list[str], str]]:
    """The entries of the section "Parameters": names, and their type if it is not that of the annotation."""
    section = (inspect.getdoc(thing) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    parts = [line.partition(" : ") for line in section.splitlines() if not line.startswith(" ")]
    return [(names.split(", "), kind) for names, _, kind in parts]


def parameters(thing: Any) -> dict[str, inspect.Parameter]:
    return {} if thing is trellis.TrellisError else dict(inspect.signature(thing).parameters)


def own_methods(cls: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that are defined in this package."""
    for name in dir(cls):
        thing = inspect.getattr_static(cls, name)
        for wrapped in ("fget", "func", "__func__"):
            thing = getattr(thing, wrapped, thing)
        if not name.startswith("_") and inspect.isfunction(thing) and thing.__module__.startswith("trellis"):
            yield name, thing


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_meaning_and_a_type(name: str) -> None:
    found, known = entries(find(name)), parameters(find(name))
    assert sorted(one for names, _ in found for one in names) == sorted(known)
    for names, kind in found:
        annotations = {str(known[one].annotation) for one in names}
        assert kind or (len(annotations) == 1 and not annotations & UNTYPED), f"{names} have no type"


@pytest.mark.parametrize("name", NAMES)
def test_methods_have_types(name: str) -> None:
    thing = find(name)
    for method, function in own_methods(thing) if inspect.isclass(thing) else ():
        signature = inspect.signature(function)
        assert signature.return_annotation is not signature.empty, method
        for one in [*signature.parameters.values()][1:]:
            assert one.annotation is not one.empty, f"{method}: {one.name}"
