"""trellis export"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trellis.cli.arguments import add_model
from trellis.cli.console import Answer, Note
from trellis.errors import TrellisError
from trellis.registry import find_family, resolve

SUMMARY = "export a model to NumPy, hmmlearn or ARPA"
EXAMPLE = "trellis export demo -o model.npz"


SUFFIXES = {"numpy": (".npz",), "hmmlearn": (".pkl", ".pickle"), "arpa": (".arpa", ".arpa.gz")}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="output file; its suffix sets the format")
    parser.add_argument("--to", metavar="FORMAT", help="numpy (.npz) or hmmlearn (.pkl) for HMMs, arpa for n-grams")


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    model = load(args.model)
    formats = find_family(model.family).exports
    if not formats or args.to not in (None, *formats):
        known = f"its formats are {', '.join(formats)}" if formats else "no export format is available"
        raise TrellisError(f"This {model.name} model cannot be exported as {args.to or 'another format'}; {known}.")
    resolve(formats[format_of(args.output, [args.to] if args.to else [*formats])])(model, args.output)
    return Answer({"output": str(args.output)}, [Note(f"wrote {args.output}")])


def format_of(file: Path, formats: Sequence[str]) -> str:
    """The format with the suffix of the file; formats of other packages take any suffix."""
    for name in formats:
        if file.name.endswith(SUFFIXES.get(name, "")):
            return name
    known = " or ".join(f"{' or '.join(SUFFIXES[name])} ({name})" for name in formats)
    raise TrellisError(f"Cannot export to {file}: the format follows from the suffix; use {known}.")
