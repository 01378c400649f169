"""Arrow and Parquet tables, such as those of the package `datasets`; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.corpus.recipe import Recipe

COLUMN = "text"  # by default
PARQUET = b"PAR1"  # how such a file begins


def read(path: Path, recipe: Recipe, report: Any) -> Iterator[str]:
    """Yield the text of a table. Each row, a string or a list of tokens (words or ids), is a one-sentence document."""
    column = recipe.column or COLUMN
    for batch in batches(path):
        if column not in batch.schema.names:
            raise TrellisError(f"{path} has no column {column!r}; it has {', '.join(batch.schema.names)}.")
        texts = map(text_of, batch.column(column).to_pylist())
        yield "".join(DOCUMENT + text + LINE for text in texts)
        report(batch.nbytes)


def batches(path: Path) -> Iterator[Any]:
    """Yield the rows of a file in batches of thousands of rows."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise TrellisError(f"Reading {path} needs pyarrow: install it, or convert the file to CSV.") from error
    try:
        with path.open("rb") as start:
            is_parquet = start.read(len(PARQUET)) == PARQUET
        if is_parquet:
            yield from parquet.ParquetFile(path).iter_batches()
            return
        with pyarrow.memory_map(str(path)) as file:
            try:
                table = ipc.open_file(file).read_all()
            except pyarrow.ArrowInvalid:  # `datasets` writes the stream format
                file.seek(0)
                table = ipc.open_stream(file).read_all()
            yield from table.to_batches(max_chunksize=10_000)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TrellisError(f"Cannot read {path} as an Arrow table: {error}; use another reader.") from error


def text_of(value: Any) -> str:
    """Convert a value of the column to one line of text, in which tokens are separated by spaces."""
    words = value.split() if isinstance(value, str) else [] if value is None else map(str, value)
    return " ".join(words).replace(DOCUMENT, " ")
