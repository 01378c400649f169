"""Arguments shared by several commands."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.errors import TrellisError
from trellis.options import shown
from trellis.progress import Progress, progress

if TYPE_CHECKING:
    from trellis.corpus.records import Records
    from trellis.models.reading import Sentence

logger = logging.getLogger(__name__)
TOKENS = 1 << 17  # of a chunk of sentences
DIGITS = 9  # of a count


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or len(text) > DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not an integer from 1 to 10^{DIGITS} - 1")
    return int(text)


def seed(text: str) -> int:
    """Parse a seed for a 64-bit generator."""
    if not text.isdecimal() or len(text) > 19 or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not an integer from 0 to 2^63 - 1")
    return int(text)


def check_picture(path: Path | None) -> None:
    """Raise early if a picture's suffix is not .svg."""
    if path is not None and path.suffix != ".svg":
        raise TrellisError(f"Cannot write {path}: pictures are SVG; use a name that ends in .svg.")


def add_device(parser: argparse.ArgumentParser, default: str | None = "auto") -> None:
    parser.add_argument("--device", default=default, help="auto (the GPU if available), cpu or cuda")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file, the folder of a run, or demo (included)")


def add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="NAME|PATH", help="corpus (default: the model's training corpus)")
    parser.add_argument("--split", help="train, valid, test or all (default: test, or all if the file has no splits)")


def add_text(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_device(parser)
    parser.add_argument("text", nargs="*", help="sentences (default: read --input)")
    add_input(parser)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="number of processes (default 1)")


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the options that `records_of` and `chunks_of` read."""
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="a file or .gz file, or a folder or "
                        "quoted pattern of such files, in the order of their names (default: standard input)"
                        )  # fmt: skip
    parser.add_argument("--reader", metavar="NAME", help="text, fasta, csv or arrow (default: by the suffix of --input "
                        "or else that of the training text)")  # fmt: skip
    parser.add_argument("--column", metavar="NAME", help="column of sequences (default: as in the training text)")
    parser.add_argument("--pretokenized", action="store_true", help="split the text at spaces only")


def records_of(args: argparse.Namespace, model: Any) -> Records:
    """The sentences given as arguments, or the records of a file or of standard input, read as the model reads."""
    from trellis.corpus.records import files_of, given_records, read_files
    from trellis.models.reading import recipe_of

    if not args.text:
        path = None if str(args.input) == "-" else args.input
        paths = files_of(path)
        return read_files(paths, recipe_of(model, paths[0], args.reader, args.column))
    if args.input is not None:
        raise TrellisError("Pass sentences as arguments or a file with --input, not both.")
    if any(0xD800 <= ord(c) < 0xE000 for text in args.text for c in text):
        raise TrellisError("The text on the command line is not UTF-8; convert it first.")
    return given_records(args.text)


def chunks_of(
    args: argparse.Namespace, model: Any, most: int = TOKENS, gap: str | None = None
) -> Iterator[list[Sentence]]:
    """The sentences to process, in chunks of about `most` tokens, with a progress report on the terminal."""
    from trellis.models.reading import sentences

    records = records_of(args, model)
    found = sentences(model, records, gap, args.pretokenized, records.unit)
    chunks = records.in_chunks(found, lambda sentence: len(sentence.tokens) + 1, most)
    return reported(noting_unknown(chunks, model), args)


def noting_unknown(chunks: Iterable[list[Sentence]], model: Any) -> Iterator[list[Sentence]]:
    """The chunks, with a warning if most words of the first are unknown to the model."""
    for number, chunk in enumerate(chunks):
        ids = [i for sentence in chunk for i in sentence.ids.tolist()] if number == 0 else []
        unknown = 0 if model.vocab.unk is None else ids.count(model.vocab.unk)
        if 2 * unknown > len(ids):
            logger.warning(f"{unknown} of {len(ids)} words are unknown to the model; it reads them as <unk>")
        yield chunk


def reported(chunks: Iterable[list[Any]], args: argparse.Namespace) -> Iterator[list[Any]]:
    """The chunks, with a progress report unless the terminal shows the results. Raises if there are no chunks."""
    hidden = bool(args.text) or sys.stdout.isatty()
    with Progress.hidden() if hidden else progress(args.command, None, "sentences") as bar:
        for chunk in chunks:
            yield chunk
            bar.advance(len(chunk))
    if not bar.done:
        raise TrellisError("No text given; pass sentences as arguments, with --input, or on standard input.")
