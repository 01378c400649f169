"""Arguments shared by several commands."""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from trellis.errors import TrellisError


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def seed(text: str) -> int:
    """Parse a seed for a 64-bit generator."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to 2^63 - 1")
    return int(text)


def check_picture(path: Path | None) -> None:
    """Raise early if a picture's suffix is not .svg."""
    if path is not None and path.suffix != ".svg":
        raise TrellisError(f"Cannot write {path}: pictures are SVG; use a name that ends in .svg.")


def add_device(parser: argparse.ArgumentParser, default: str | None = "auto") -> None:
    parser.add_argument("--device", default=default, help="auto (the GPU if available), cpu or cuda")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file, the folder of a finished run, or demo (included)")


def add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="NAME|PATH", help="corpus (default: the model's training corpus)")
    parser.add_argument("--split", help="train, valid, test or all (default: test, or all if the file has no splits)")


def add_text(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_device(parser)
    parser.add_argument("text", nargs="*", help="sentences (default: read from standard input, one per line)")


def lines_of(args: argparse.Namespace) -> Iterator[str]:
    """The sentences given as arguments or on standard input."""
    if args.text:
        if any(0xD800 <= ord(c) < 0xE000 for text in args.text for c in text):
            raise TrellisError("The text on the command line is not UTF-8; convert it first.")
        yield from args.text
        return
    empty = True
    try:
        for line in io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig") if sys.stdin else ():
            empty = False
            yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise TrellisError(f"Standard input is not UTF-8 ({error.reason}); convert it first.") from error
    if empty:
        raise TrellisError("No text given; pass sentences as arguments or on standard input.")
