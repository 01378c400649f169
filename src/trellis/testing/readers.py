"""Checks of corpus readers."""

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trellis.corpus.read import Reader
from trellis.corpus.recipe import Recipe
from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.testing.close import Check, require, run_checks

Documents = Sequence[Sequence[str]]  # the sentences of each document


def check_reader(reader: Reader, content: bytes, documents: Documents, recipe: Recipe | None = None) -> None:
    """Check a reader on a file with this content.

    Parameters
    ----------
    reader
        The reader to check.
    content
        The content of a small file.
    documents
        The expected sentences of each document.
    recipe
        Options of [data], such as `Recipe(column="text")`.

    Examples
    --------
    >>> from trellis.corpus.read import READERS
    >>> from trellis.testing import check_reader
    >>> check_reader(READERS["fasta"], b">one\\nAC\\nGT\\n>two\\nAA\\n", [["ACGT"], ["AA"]])
    """
    require(isinstance(reader, Reader), f"{reader!r} is not a Reader")
    with tempfile.TemporaryDirectory() as folder:
        run_checks("The reader", Case(reader, content, documents, recipe or Recipe(), Path(folder)), CHECKS)


class Case:
    """A reader, and a file to check it with, plain and gzipped."""

    def __init__(self, reader: Reader, content: bytes, documents: Documents, recipe: Recipe, folder: Path) -> None:
        self.reader, self.documents, self.recipe = reader, documents, recipe
        name = "file" + next(iter(reader.suffixes), ".txt")
        self.plain, self.packed = folder / name, folder / f"{name}.gz"
        self.plain.write_bytes(content)
        self.packed.write_bytes(gzip.compress(content))

    def read(self, path: Path) -> tuple[list[str], int]:
        """The text of a file in pieces, and the number of bytes reported."""
        seen: list[int] = []
        return list(self.reader.read(path, self.recipe, seen.append)), sum(seen)


def text(case: Case) -> None:
    """The reader yields the sentences of every document: a newline ends a sentence, DOCUMENT begins a document."""
    whole = DOCUMENT + "".join(case.read(case.plain)[0])
    require(whole.endswith((LINE, DOCUMENT)), f"the text ends within a sentence: {whole[-40:]!r}")
    lines = [part.removesuffix(LINE).split(LINE) for part in whole.split(DOCUMENT) if part]
    found = [[line.strip() for line in document] for document in lines]  # blanks around a sentence are not tokens
    wanted = [[*sentences] for sentences in case.documents]
    require(found == wanted, f"it yields {found} instead of {wanted}")


def packed(case: Case) -> None:
    """A gzipped file gives the same text."""
    require("".join(case.read(case.packed)[0]) == "".join(case.read(case.plain)[0]), "the texts differ")


def reported(case: Case) -> None:
    """The reader reports every byte that it reads."""
    for path in (case.plain, case.packed):
        seen, size = case.read(path)[1], path.stat().st_size
        require(seen == size, f"it reported {seen} of {size} bytes")


def suffixes(case: Case) -> None:
    """`suffixes` begin with a dot and do not include .gz."""
    wrong = [suffix for suffix in case.reader.suffixes if not suffix.startswith(".") or suffix == ".gz"]
    require(not wrong, f"it has {wrong}")


def choices(case: Case) -> None:
    """`choices` are options of [data]."""
    Recipe(**case.reader.choices)


CHECKS: list[Check] = [text, packed, reported, suffixes, choices]
