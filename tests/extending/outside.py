"""A package that is installed beside the library: the metadata of a distribution, and commands that see it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import torch

from trellis.cli.main import main

HERE = Path(__file__).parent
ENTRY_POINTS = """[trellis.families]
mixture = mixture_family:FAMILY

[trellis.parameters]
ring = ring_params:RingParams
sticky = sticky_params:StickyParams

[trellis.readers]
jsonl = json_lines:READER

[trellis.commands]
surprise = surprise
"""


def install(folder: Path, entry_points: str = ENTRY_POINTS) -> Path:
    """Write what an installed distribution has of a pyproject.toml; the file of entry points."""
    info = folder / "recipes-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(entry_points)
    return info / "entry_points.txt"


def trellis(place: Path, *words: object, code: int = 0) -> str:
    """What a command prints, in a process that sees the distribution."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "out", Path(folder) / "err"
        context = get_context("spawn" if torch.cuda.is_available() else "fork")  # a forked process cannot use a GPU
        process = context.Process(target=_command, args=(place, [*map(str, words)], *files))
        process.start()
        process.join()
        out, err = (file.read_text() for file in files)
    assert process.exitcode == code, err
    return err if code else out


def _command(place: Path, words: list[str], out: Path, err: Path) -> None:
    sys.path[:0] = [str(HERE), str(place)]
    os.environ["TRELLIS_CACHE"] = str(place / "cache")
    logging.getLogger().handlers.clear()
    with out.open("w") as sys.stdout, err.open("w") as sys.stderr:
        main(words)


def new_process(place: Path, *words: object) -> str:
    """What a command prints, in a new process that sees the distribution."""
    paths = [str(HERE), str(place), *(path for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRELLIS_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "trellis", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
