"""The mutation runner: its changes, the map of lines to tests, and the mutated copy of a package."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import trellis
from mutants.__main__ import is_current, judged, version
from mutants.changes import Mutant, changes, shuffled
from mutants.covering import Covering, recorder
from mutants.swapping import NotInFunctionsError, replacements
from mutants.trial import overlay

SOURCE = '''"""Text."""
LIMIT = 3


def find(values: list[int], first: int = 0) -> int | None:
    """Text."""
    if first < LIMIT and not values:
        raise ValueError(f"{first + 1}")
    return values[first : 2] + [-1]
'''
TEXTS = {
    "(4)", "(1)", "(not (first < LIMIT and (not values)))", "(first < LIMIT or not values)", "(first <= LIMIT)",
    "(values)", "pass", "return None", "(values[first:2] - [-1])", ":2", "first:", "(3)", "(2)",
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one file to mutate, and others."""
    folder = tmp_path / "real" / "trellis"
    (folder / "learning").mkdir(parents=True)
    (folder / "learning" / "em.py").write_text(SOURCE)
    (folder / "learning" / "other.py").write_text("ONE = 1\n")
    (folder / "storage.py").write_text("")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "team.py").write_text("")
    return folder


def test_every_kind_of_change(package: Path) -> None:
    found = [mutant for mutant in shuffled(package, seed=0) if mutant.file == "learning/em.py"]
    assert {mutant.text for mutant in found} == TEXTS  # nothing in annotations, docstrings and messages
    assert {mutant.line for mutant in found if mutant.imported} == {2}
    for mutant in found:
        compile(mutant.applied(SOURCE.encode()), "mutant", "exec")


def test_samples_repeat(package: Path) -> None:
    first, again, other = (list(shuffled(package, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert set(first) == set(other)
    assert len(set(first)) == len(first)


def test_a_mutated_copy_differs_in_one_file(package: Path, tmp_path: Path) -> None:
    mutant = next(mutant for mutant in shuffled(package, 0) if mutant.text == "(4)")
    copy = overlay(package, mutant, tmp_path / "copy") / "trellis"
    changed = [
        file for file in package.rglob("*.py") if (copy / file.relative_to(package)).read_text() != file.read_text()
    ]
    assert changed == [package / "learning" / "em.py"]
    assert "LIMIT = (4)" in (copy / "learning" / "em.py").read_text()
    assert (package / "learning" / "em.py").read_text() == SOURCE


def test_loaded_functions_get_the_code_of_a_mutant(package: Path) -> None:
    file, space = package / "learning" / "em.py", dict[str, Any]()
    exec(compile(SOURCE, str(file), "exec"), space)
    find, found = space["find"], {(mutant.line, mutant.text): mutant for mutant in changes(package, file)}

    def changed(line: int, text: str) -> CodeType:
        source = found[line, text].applied(SOURCE.encode())
        ((function, code),) = replacements({(str(file), "find", 5): [find]}, file, source)
        assert function is find
        return code

    assert find([1, 2, 3]) == [1, 2, -1]
    find.__code__ = changed(9, "first:")
    assert find([1, 2, 3]) == [1, 2, 3, -1]
    find.__code__ = changed(9, "return None")
    assert find([1, 2, 3]) is None
    for line, text in [(2, "(4)"), (5, "(1)")]:  # executed on import
        with pytest.raises(NotInFunctionsError):
            changed(line, text)


def test_the_tests_of_a_line(tmp_path: Path) -> None:
    tests = [
        ("tests/test_x.py::a", 0.1, True, {"learning/em.py": [2, 3]}),
        ("tests/test_em.py::b", 0.5, True, {"learning/em.py": [3]}),
        ("tests/test_x.py::c", 0.0, False, {"learning/em.py": [3]}),
        ("tests/test_x.py::gone", 0.0, True, {"learning/em.py": [3]}),
    ]
    keys = "test", "seconds", "passed", "lines"
    path = tmp_path / "map.jsonl"
    path.write_text("".join(json.dumps(dict(zip(keys, test, strict=True))) + "\n" for test in tests))
    covering = Covering(path, [name for name, *_ in tests if "gone" not in name])
    own, other = "tests/test_em.py::b", "tests/test_x.py::a"
    assert covering.tests("learning/em.py", range(3, 4), False) == [own, other]
    assert covering.tests("learning/em.py", range(2, 3), False) == [other]
    assert covering.tests("learning/em.py", range(9, 10), False) == []
    assert covering.tests("learning/em.py", range(9, 10), True) == [own, other]


def test_executed_lines_are_recorded(package: Path) -> None:
    file = str(package / "learning" / "em.py")
    program = f"""
import sys
from mutants.covering import recorder
space = {{}}
exec(compile({SOURCE!r}, {file!r}, "exec"), space)
found = recorder({{{file!r}}})
found.start()
space["find"]([1, 2])
print(sorted(found.stop()[{file!r}] - {{5}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[7, 9]\n"
    assert recorder(set()).lines == {}


def test_a_mutant_can_be_written_down_and_read() -> None:
    mutant = Mutant("storage.py", 1, 2, False, "constant", 3, 4, "(1)")
    assert Mutant(**json.loads(json.dumps(vars(mutant)))) == mutant


def test_judged_mutants_have_a_reason_and_a_file() -> None:
    package = Path(trellis.__file__).parent
    for (file, diff), why in judged().items():
        assert why
        assert (package / file).is_file()
        assert diff.startswith("-")


def test_the_map_keeps_only_tests_of_unchanged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, current in (("1", True), ("2", False)):
        Path("test_a.py").write_text(text)
        version.cache_clear()
        assert is_current({"test": "test_a.py::test", "version": zlib.crc32(b"1")}) is current
    assert not is_current({"test": "test_a.py::test"})
    assert version("test_b.py::test") == 0


def test_what_is_executed_on_import_is_tried_by_the_tests_of_its_folder(tmp_path: Path) -> None:
    rows = [
        {"test": f"tests/test_{name}.py::test", "seconds": 1.0, "passed": True, "lines": {file: [1]}}
        for name, file in {"em": "learning/em.py", "lbfgs": "learning/lbfgs.py", "read": "corpus/read.py"}.items()
    ]
    (tmp_path / "map").write_text("".join(json.dumps(row) + "\n" for row in rows))
    covering = Covering(tmp_path / "map", {row["test"] for row in rows})
    assert covering.tests("learning/em.py", range(1, 2), True) == ["tests/test_em.py::test"]
    both = ["tests/test_em.py::test", "tests/test_lbfgs.py::test"]
    assert sorted(covering.tests("learning/config.py", range(1, 2), True)) == both
    assert covering.tests("learning/config.py", range(1, 2), False) == []
