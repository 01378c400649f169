"""Which package may import which: a new edge needs a line here, and a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trellis

ROOT = Path(trellis.__file__).parent
TOOLS = {"errors", "config", "devices", "progress", "storage"}
CORE = {"types", "kernels", "dirichlet", "transitions", "emissions", "parts"}
MAY_IMPORT = {  # from the lowest to the highest
    "errors": set(),
    "config": {"errors"},
    "devices": {"errors"},
    "storage": {"errors"},
    "progress": set(),
    "kernels": set(),
    "types": {"kernels"},
    "dirichlet": set(),
    "transitions": {"types", "kernels", "dirichlet"},
    "emissions": {"types", "kernels", "dirichlet", "devices", "errors"},
    "parts": {"types", "dirichlet", "transitions", "emissions", "errors"},
    "engines": {"types", "kernels", "transitions", "errors"},
    "inference": {"devices", "errors", "engines"} | CORE,
    "learning": {"config", "errors", "inference"} | CORE,
    "corpus": {"types", "kernels"} | TOOLS,
    "params": {"corpus", "learning"} | CORE | TOOLS,
    "models": {"corpus", "inference"} | CORE | TOOLS,
    "families": {"corpus", "inference", "learning", "models", "params"} | CORE | TOOLS,
    "tasks": {"corpus", "inference", "learning", "models", "families"} | CORE | TOOLS,
    "train": {"corpus", "learning", "params", "models", "families", "tasks"} | CORE | TOOLS,
    "report": {"corpus", "models", "families", "tasks", "train"} | TOOLS,
    "tagging": {"corpus", "types", "models", "families"} | TOOLS,
    "estimators": {"corpus", "inference", "learning", "params", "families", "tasks", "report"} | CORE | TOOLS,
    "cli": {"corpus", "models", "families", "tasks", "tagging", "train", "report", "__version__"} | TOOLS,
}
TOP = {"__init__", "__main__"}


def imported(file: Path) -> Iterator[str]:
    """The packages of trellis that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "trellis":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from node.module.split(".")[1:2] if node.module.startswith("trellis.") else ()
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("trellis."))


def package(file: Path) -> str:
    relative = file.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_downwards(file: Path) -> None:
    if (here := package(file)) not in TOP:
        assert set(imported(file)) - {here} <= MAY_IMPORT[here]


def test_there_is_no_cycle_between_packages() -> None:
    order = list(MAY_IMPORT)
    for name, below in MAY_IMPORT.items():
        assert {order.index(other) < order.index(name) for other in below & set(order)} <= {True}, name


def test_families_import_each_other_without_a_cycle() -> None:
    """A tagger HMM is an HMM, a recurrent network may begin as an LDS."""
    edges: dict[str, set[str]] = {}
    for file in (ROOT / "families").rglob("*.py"):
        own = file.relative_to(ROOT / "families").parts
        if len(own) > 1:
            found = (n.module for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom))
            named = {m.split(".")[2] for m in found if m and m.startswith("trellis.families.")}
            edges.setdefault(own[0], set()).update(named - {own[0]})
    assert edges == {
        "crf": set(), "factorial": set(), "hmm": set(), "lds": set(), "ngram": set(),
        "tag_hmm": {"hmm"}, "neural": {"ngram", "lds"},
    }  # fmt: skip
