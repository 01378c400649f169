"""The `trellis` program: finds commands, parses their arguments and prints their results."""

import argparse
import logging
import os
import pkgutil
import shlex
import signal
import sys
import threading
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, NoReturn

from trellis import __version__, distributed
from trellis.cli import commands
from trellis.errors import TrellisError, printable, within_limits
from trellis.extensions import COMMANDS, entries
from trellis.progress import set_quiet

FIRST = (  # the order in which `trellis --help` lists them
    "train", "eval", "sample", "generate", "score", "infill", "embed", "states", "draw", "info", "export", "tag",
    "cluster",
)  # fmt: skip
MOMENT = 2.0  # seconds between SIGTERM and the end of a process of a job, outside the training loop
PARTS = "SUMMARY", "EXAMPLE", "arguments", "run"  # what the module of a command defines: two strings and two functions


def find_commands() -> dict[str, ModuleType]:
    """All commands by name, built-in or from other packages."""
    own = {found.name: f"{commands.__name__}.{found.name}" for found in pkgutil.iter_modules(commands.__path__)}
    names = [*(name for name in FIRST if name in own), *(name for name in sorted(own) if name not in FIRST)]
    paths = {name: own[name] for name in names}
    paths |= {name: path for name, path in entries(COMMANDS).items() if name not in paths}
    return {name: module for name, path in paths.items() if (module := load_command(name, path)) is not None}


def load_command(name: str, path: str) -> ModuleType | None:
    """Import the module of a command. If a command of another package is broken, log a warning and return None."""
    try:
        module = import_module(path)
        reason = ", ".join(f"it has no {part}" for part in PARTS if not hasattr(module, part))
    except ImportError as error:
        reason = str(error)
    if not reason:
        return module
    print(f"trellis: the command {name!r} cannot be loaded from {path}: {reason}.", file=sys.stderr)
    return None


class Parser(argparse.ArgumentParser):
    """A parser of unabbreviated options, whose messages repeat arguments with control characters escaped."""

    def __init__(self, prog: str | None = None, **more: Any) -> None:
        super().__init__(prog, **more, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def build_parser(found: dict[str, ModuleType]) -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = Parser("trellis", description="Train, evaluate and query latent-state models of discrete sequences.")
    parser.add_argument("--version", action="version", version=f"trellis {__version__}")
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in found.items():
        about = {"help": command.SUMMARY, "description": command.SUMMARY[:1].upper() + command.SUMMARY[1:] + "."}
        sub = choices.add_parser(name, epilog=f"example: {command.EXAMPLE}", **about)
        command.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--quiet", action="store_true", help="suppress progress and log output")
    return parser


def parse(found: dict[str, ModuleType], argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of a command; sentences may also follow its options."""
    parser = build_parser(found)
    args, more = parser.parse_known_args(argv)
    if more and (not isinstance(getattr(args, "text", None), list) or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        args.text += more
    args.line = shlex.join(["trellis", *(sys.argv[1:] if argv is None else argv)])
    return args


def main(argv: list[str] | None = None) -> None:
    """Run one command. User errors print one line and exit with code 2; interrupts are left to `trellis.__main__`."""
    if sys.stdout is None:
        fail("Standard output is closed.", 2)
    if getattr(sys.stdout, "encoding", None) not in (None, "utf-8", "UTF-8") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    found = find_commands()
    args = parse(found, argv)
    handler = logging.StreamHandler()
    handler.setFormatter(Escaped("%(message)s"))
    try:
        if argv is None:  # this process runs nothing but the command
            take_part()
        logging.basicConfig(handlers=[handler], level=log_level(args.quiet))
        set_quiet(args.quiet or not distributed.is_first())
        with within_limits():
            answer = found[args.command].run(args)
            if distributed.is_first():
                answer.write(args.json)
    except TrellisError as error:
        fail(str(error), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"Operating system error: {error}.", 2)
    sys.exit(answer.exit_code)


def take_part() -> None:
    """Make this process one of the job that started it. When one process has failed, torchrun ends the others by
    SIGTERM; they get a moment to print why."""
    distributed.declare()
    if distributed.size() > 1:
        signal.signal(signal.SIGTERM, end_soon)


def end_soon(number: int, _: FrameType | None) -> None:
    timer = threading.Timer(MOMENT, os._exit, [128 + number])
    timer.daemon = True
    timer.start()


class Escaped(logging.Formatter):
    """Escapes unprintable characters of messages."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))


def log_level(quiet: bool) -> int:
    """Of several processes, only the first logs."""
    return logging.ERROR if quiet or not distributed.is_first() else logging.INFO


def fail(sentence: str, code: int) -> None:
    if distributed.speaks_first():
        print(f"trellis: {printable(sentence)}", file=sys.stderr)
    sys.exit(code)
