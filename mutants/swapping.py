"""Mutants in a running process: the loaded functions that another source changes, and their new code."""

from __future__ import annotations

import gc
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType

Place = tuple[str, str, int]  # file, qualified name and first line of a function
Replacement = tuple[FunctionType, CodeType]


class NotInFunctionsError(Exception):
    """Two sources differ in what is executed on import, so the module has to be imported again."""


def load(package: Path, files: list[Path]) -> dict[Place, list[FunctionType]]:
    """Import files of a package; returns their functions by place."""
    for file in files:
        parts = file.relative_to(package.parent).with_suffix("").parts
        with suppress(ImportError):
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
    names, found = {str(file) for file in files}, defaultdict[Place, list[FunctionType]](list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in names:
            found[_place(each.__code__)].append(each)
    return dict(found)


def replacements(functions: dict[Place, list[FunctionType]], file: Path, source: bytes) -> list[Replacement]:
    """The loaded functions of a file that another source changes, with their new code."""
    before, after = (compile(text, str(file), "exec", dont_inherit=True) for text in (file.read_bytes(), source))
    found = [(one, new) for old, new in _changed(before, after) for one in functions.get(_place(old), [])]
    if not found or any(len(one.__code__.co_freevars) != len(new.co_freevars) for one, new in found):
        raise NotInFunctionsError
    return found


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions that differ, with those inside them. Bodies of modules and classes must be the same."""
    within = [[inner for inner in code.co_consts if isinstance(inner, CodeType)] for code in (old, new)]
    is_function = bool(old.co_flags & inspect.CO_OPTIMIZED)
    if is_function and old != new:
        yield old, new
    if not is_function and (_body(old) != _body(new) or len(within[0]) != len(within[1])):
        raise NotInFunctionsError
    if len(within[0]) == len(within[1]):
        for pair in zip(*within, strict=True):
            yield from _changed(*pair)


def _body(code: CodeType) -> tuple[object, ...]:
    """What a body executes, without its functions and line numbers."""
    constants = [(type(value), value) for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, code.co_names, constants
