"""A package that is installed beside the library: the metadata of a distribution, and commands that see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    paths = [str(HERE), str(place), *(path for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRELLIS_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "trellis", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stderr if code else ended.stdout
