"""Checks of commands."""

import argparse
import contextlib
import io
import json
import shlex
import subprocess
import sys
from types import ModuleType

from trellis.cli.console import Answer
from trellis.cli.main import PARTS, build_parser
from trellis.testing.close import Check, require, run_checks


def check_command(name: str, module: ModuleType, *words: object) -> None:
    """Check that a module is a valid command, and run it with the arguments `words`.

    Parameters
    ----------
    name
        The name of the command.
    module
        The module with SUMMARY, EXAMPLE, `arguments` and `run`.
    words
        The arguments of the command line.

    Examples
    --------
    >>> from trellis.cli.commands import config
    >>> from trellis.testing import check_command
    >>> check_command("config", config, "lds")
    """
    run_checks(f"The command {name}", Case(name, module, [str(word) for word in words]), CHECKS)


class Case:
    """A command and its arguments."""

    def __init__(self, name: str, module: ModuleType, words: list[str]) -> None:
        self.name, self.module, self.words = name, module, words

    def parse(self, words: list[str]) -> argparse.Namespace:
        return build_parser({self.name: self.module}).parse_args([self.name, *words])


def parts(case: Case) -> None:
    """The module has a SUMMARY, an EXAMPLE, and the functions `arguments` and `run`."""
    missing = [part for part in PARTS if not hasattr(case.module, part)]
    require(not missing, f"it has no {', '.join(missing)}")
    require(case.module.SUMMARY.strip() and "\n" not in case.module.SUMMARY, "SUMMARY is not one line")


def example(case: Case) -> None:
    """EXAMPLE calls this command with valid arguments."""
    program, name, *words = shlex.split(case.module.EXAMPLE.split("<")[0].split(">")[0])
    require((program, name) == ("trellis", case.name), f"EXAMPLE is {case.module.EXAMPLE!r}")
    case.parse(words)


def without_torch(case: Case) -> None:
    """`trellis --help` lists it without loading torch."""
    code = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
    code += f"import argparse, {case.module.__name__} as command\ncommand.arguments(argparse.ArgumentParser())\n"
    code += 'sys.exit("torch" in sys.modules)'
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    require(ended.returncode == 0, ended.stderr or "torch was loaded")


def answers(case: Case) -> None:
    """`run` returns an Answer with JSON values, and with blocks that can be printed."""
    for as_json in (False, True):
        answer = case.module.run(case.parse([*case.words, "--quiet"]))
        require(isinstance(answer, Answer), f"it returned {answer!r:.80}")
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            answer.write(as_json)
        require(shown.getvalue().strip(), "nothing is printed")
    for line in shown.getvalue().splitlines():
        json.loads(line)


CHECKS: list[Check] = [parts, example, without_torch, answers]
