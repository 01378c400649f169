"""The source distribution builds a wheel, and the wheel works where no optional package is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import trellis

pytest.importorskip("setuptools", minversion="77", reason="setuptools is missing")
ROOT = Path(__file__).parent.parent
SOURCES = "pyproject.toml", "README.md", "LICENSE", "NOTICE", "src"
OPTIONAL = "numba", "rich", "triton", "matplotlib", "pandas", "pyarrow", "tensorboard", "dask", "pycrfsuite", "gensim"
BUILD = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
BARE = f"""
import runpy, sys
sys.modules |= dict.fromkeys({OPTIONAL!r})
sys.argv[0] = "trellis"
import trellis
assert trellis.__file__.startswith(sys.path[1]), trellis.__file__
runpy.run_module("trellis", run_name="__main__")
"""


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build a distribution of a tree without the network."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind, str(out))], cwd=tree, check=True, capture_output=True, text=True
    )
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of the working tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(
            ROOT / name,
            tree / name,
            **({"ignore": shutil.ignore_patterns("*.egg-info", "__pycache__")} if copy is shutil.copytree else {}),
        )
    return build("sdist", tree, tree / "dist")


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of the source distribution was installed."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source) as packed:
        packed.extractall(folder, filter="data")
    wheel = build("wheel", next(folder.iterdir()), folder)
    target = tmp_path_factory.mktemp("bare")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True)
    return target


def ask(installed: Path, folder: Path, *arguments: str) -> str:
    """What the installed command prints, in a process that cannot import optional packages."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    env = inherited | {"PYTHONPATH": str(installed), "TRELLIS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BARE, *arguments]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def test_the_demo_in_a_bare_environment(installed: Path, tmp_path: Path) -> None:
    found = ask(installed, tmp_path, "infill", "demo", "the function ___ a list", "--json")
    assert "returns" in found
    (tmp_path / "text.txt").write_text("the cat sees the dog\na dog runs\nthe cat runs\n" * 20)
    options = ["--states", "3", "--set", "train.epochs=2", "--set", "eval.ngram=0", "--quiet", "--device", "cpu"]
    ask(installed, tmp_path, "train", "--data", "text.txt", "--run", "run", *options)
    assert {"model.safetensors", "report.html", "MODEL_CARD.md"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_the_distribution_has_no_data(source: Path) -> None:
    with tarfile.open(source) as packed:
        names = packed.getnames()
    assert any(name.endswith("models/demo.safetensors") for name in names)
    assert not [name for name in names if re.search(r"\.(npy|gz|jsonl|pyc)$|/runs/|/_build/", name)]
    assert source.stat().st_size < 5_000_000


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert trellis.__version__ == project["version"] == cited[1]
    extras = project["optional-dependencies"]
    every = set(re.findall(r"[a-z]+", extras["all"][0].split("[")[1]))
    assert every == extras.keys() - {"all", "dev", "docs", "oracles", "peers"}
