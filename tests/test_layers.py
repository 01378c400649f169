"""Which package may import which: a new edge needs a line here, and a reason."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trellis

ROOT = Path(trellis.__file__).parent
TOOLS = {"errors", "distributed", "extensions", "options", "registry", "config", "devices", "progress", "storage"}
CORE = {"types", "kernels", "dirichlet", "transitions", "emissions", "parts"}
MAY_IMPORT = {  # from the lowest to the highest
    "errors": set(),
    "distributed": {"errors"},
    "extensions": set(),
    "options": {"errors", "extensions"},
    "registry": {"errors", "extensions", "options"},
    "config": {"errors", "options", "registry"},
    "devices": {"errors", "distributed"},
    "storage": {"errors"},
    "progress": {"errors"},
    "constraints": {"errors"},
    "kernels": set(),
    "types": {"kernels", "distributed"},
    "dirichlet": {"kernels"},
    "transitions": {"types", "kernels", "dirichlet", "distributed"},
    "emissions": {"types", "kernels", "dirichlet", "devices", "errors"},
    "parts": {"types", "dirichlet", "transitions", "emissions", "errors"},
    "engines": {"types", "kernels", "transitions", "errors"},
    "inference": {"constraints", "devices", "errors", "engines"} | CORE,
    "learning": {"config", "distributed", "errors", "inference", "options"} | CORE,
    "corpus": {"types", "kernels"} | TOOLS,
    "models": {"constraints", "corpus", "inference"} | CORE | TOOLS,
    "tasks": {"corpus", "learning", "models"} | CORE | TOOLS,  # dynamic evaluation learns
    "report": {"constraints", "corpus", "models", "tasks"} | TOOLS,
    "explore": {"corpus", "models", "tasks", "report"} | TOOLS,  # families by import strings
    "training": {"corpus", "learning", "models", "tasks", "report", "__version__"}
    | TOOLS,  # families by import strings
    "families": {"constraints", "corpus", "inference", "learning", "models", "tasks", "report", "explore", "training"}
    | CORE
    | TOOLS,
    "estimators": {"corpus", "inference", "learning", "families", "tasks", "report"} | CORE | TOOLS,
    "hmm": {"estimators"},
    "vhmm": {"estimators"},
    "api": {"corpus", "models", "tasks", "training"} | TOOLS,
    "cli": {"constraints", "corpus", "models", "families", "tasks", "training", "report", "explore", "__version__"}
    | TOOLS,
    "testing": {"inference", "learning", "corpus", "models", "tasks", "training", "families", "cli"} | CORE | TOOLS,
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
    """An HMM tagger is an HMM, a recurrent network may begin as an LDS, a grammar has an HMM's nets, and a CRF looks at
    what others have learned."""
    edges: dict[str, set[str]] = {}
    for file in (ROOT / "families").rglob("*.py"):
        own = file.relative_to(ROOT / "families").parts
        if len(own) > 1:
            found = (n.module for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom))
            named = {m.split(".")[2] for m in found if m and m.startswith("trellis.families.")} - {"language_model"}
            edges.setdefault(own[0], set()).update(named - {own[0]})
    assert edges == {
        "factorial": {"hmm"}, "hmm": set(), "lds": set(), "ngram": set(), "hmm_tagger": {"hmm"}, "pcfg": {"hmm"},
        "neural": {"ngram", "lds"}, "crf": {"hmm", "factorial", "lds", "neural"},
    }  # fmt: skip


TORCH_FREE = """
import sys, argparse
import trellis.cli.main as cli
from trellis.registry import FAMILIES, find_family
from trellis.config import RunConfig
for name in FAMILIES:
    RunConfig(model=find_family(name).load("config")())
cli.build_parser(cli.find_commands())
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


def test_help_and_configurations_load_no_torch() -> None:
    subprocess.run([sys.executable, "-c", TORCH_FREE], check=True)
