"""Ctrl-C during start-up and in a command: one line and exit code 130."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
MODULE, _, FUNCTION = SCRIPTS["trellis"].partition(":")
WAYS = {
    "python -m trellis": "import runpy; runpy.run_module('trellis', run_name='__main__', alter_sys=True)",
    "console script": f"from {MODULE} import {FUNCTION}; {FUNCTION}()",
}
MOMENTS = {  # the module whose import is interrupted -> the command
    "trellis.cli.main": ["--help"],
    "argparse": ["--help"],
    "trellis.config": ["--help"],
    "trellis.cli.commands.embed": ["--help"],
    "numpy": ["score", "nowhere", "a sentence"],
    "torch": ["score", "nowhere", "a sentence"],
}
STRIKE = """
import importlib.abc, signal, sys

moment = sys.argv.pop(1)

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_prints_one_line(way: str, moment: str) -> None:
    command = [sys.executable, "-c", STRIKE + WAYS[way], moment, *MOMENTS[moment]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trellis: interrupted\n")
