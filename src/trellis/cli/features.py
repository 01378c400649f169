"""Features of tokens as files, in the format of the suffix; rows are written chunk by chunk."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trellis.cli.console import finite, write_heading, write_rows
from trellis.errors import TrellisError

if TYPE_CHECKING:
    import numpy as np

VECTOR = "vector"
ARROW = {"id": "string", "token": "string", "probability": "float64"}  # the types of columns that are not integers
Row = dict[str, Any]
Chunks = Iterable[list[Row]]
Example = Callable[[], Row]  # a row for the columns and sizes of a file without tokens
Writer = Callable[[BinaryIO, Chunks, Example], None]


def write_features(path: Path, chunks: Chunks, example: Example) -> None:
    """Write rows of tokens. A .npy file has only their vectors; the tokens are written to a table beside it."""
    from trellis.storage import atomic_write

    with atomic_write(path) as file:
        if path.suffix == ".npy":
            with atomic_write(beside(path)) as tokens:
                write_npy(file, copied(chunks, tokens, example), example)
        else:
            FORMATS[path.suffix](file, chunks, example)


def check_format(path: Path, top: int) -> None:
    """Raise early if the suffix of a file is not supported."""
    if path.suffix not in FORMATS:
        raise TrellisError(f"{path} has an unsupported suffix; use one of {', '.join(FORMATS)}.")
    if top and path.suffix in MATRICES:
        raise TrellisError(f"{path} would hold vectors, not states (--top); use one of {', '.join(TABLES)}.")


def beside(path: Path) -> Path:
    """The table of the tokens of a .npy file."""
    return path.with_suffix(".tokens.tsv")


def flat(row: Row) -> Row:
    """A row with a column v0, v1, ... for each number of its vector."""
    if VECTOR not in row:
        return row
    numbers = {f"v{i}": value for i, value in enumerate(nested(row)[VECTOR])}
    return without_vector(row) | numbers


def nested(row: Row) -> Row:
    """A row whose vector is a list."""
    return row | {VECTOR: row[VECTOR].tolist()} if hasattr(row.get(VECTOR), "tolist") else row


def word2vec(row: Row) -> str:
    """A line of the word2vec text format."""
    if any(map(str.isspace, row["token"])):
        raise TrellisError(f"The word2vec format cannot hold the token {row['token']!r}; write .jsonl, .tsv or .csv.")
    return f"{row['token']} " + " ".join(f"{value:.6g}" for value in nested(row)[VECTOR])


def write_jsonl(file: BinaryIO, chunks: Chunks, example: Example) -> None:
    for rows in chunks:
        file.writelines((json.dumps(finite(nested(row)), ensure_ascii=False) + "\n").encode() for row in rows)


def write_table(file: BinaryIO, chunks: Chunks, example: Example, dialect: str) -> None:
    text, heading = io.TextIOWrapper(file, "utf-8", newline=""), True
    for rows in chunks:
        write_rows(text, map(flat, rows), heading, dialect)
        heading = heading and not rows
    if heading:
        write_heading(text, flat(example()), dialect)
    text.flush()
    text.detach()


def write_parquet(file: BinaryIO, chunks: Chunks, example: Example) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise TrellisError("Parquet needs pyarrow: install it, or write .jsonl, .csv or .tsv.") from error
    types = {name: getattr(pyarrow, kind)() for name, kind in ARROW.items()}
    types |= {VECTOR: pyarrow.list_(pyarrow.float32())}

    def opened(row: Row) -> Any:
        schema = pyarrow.schema([(name, types.get(name, pyarrow.int64())) for name in row])
        return parquet.ParquetWriter(file, schema)

    writer = None
    for rows in filter(None, chunks):
        writer = writer or opened(rows[0])
        writer.write_table(pyarrow.Table.from_pylist(rows, writer.schema))
    (writer or opened(example())).close()


def write_npy(file: BinaryIO, chunks: Chunks, example: Example) -> None:
    import numpy as np

    with as_matrix(chunks, example, Path(file.name).parent) as (_, matrix):
        np.save(file, matrix)


def write_safetensors(file: BinaryIO, chunks: Chunks, example: Example) -> None:
    from trellis.storage import write_tensors

    with as_matrix(chunks, example, Path(file.name).parent) as (tokens, matrix):
        write_tensors(file, {"vectors": matrix}, {"tokens": "\n".join(tokens)})


def write_word2vec(file: BinaryIO, chunks: Chunks, example: Example) -> None:
    """The word2vec text format: the number and size of the vectors, then one line each."""
    number = size = 0
    with tempfile.TemporaryFile(dir=Path(file.name).parent) as body:
        for rows in chunks:
            body.writelines(f"{word2vec(row)}\n".encode() for row in rows)
            number, size = number + len(rows), len(rows[0][VECTOR]) if rows else size
        size = size or len(example()[VECTOR])
        body.seek(0)
        file.write(f"{number} {size}\n".encode())
        shutil.copyfileobj(body, file)


@contextmanager
def as_matrix(chunks: Chunks, example: Example, folder: Path) -> Iterator[tuple[list[str], np.ndarray]]:
    """The tokens, and their vectors as one array [n, D] that is kept on disk."""
    import numpy as np

    tokens, size = list[str](), 0
    with tempfile.TemporaryFile(dir=folder) as body:
        for rows in filter(None, chunks):
            tokens += (row["token"] for row in rows)
            size = len(rows[0][VECTOR])
            np.stack([row[VECTOR] for row in rows]).astype(np.float32).tofile(body)
        body.flush()
        shape = len(tokens), size or len(example()[VECTOR])
        yield tokens, np.memmap(body, np.float32, "r+", shape=shape) if tokens else np.zeros(shape, np.float32)


def copied(chunks: Chunks, file: BinaryIO, example: Example) -> Iterator[list[Row]]:
    """The chunks, with all but the vectors written to a TSV file on the way."""
    text, heading = io.TextIOWrapper(file, "utf-8", newline=""), True
    for rows in chunks:
        write_rows(text, map(without_vector, rows), heading)
        heading = heading and not rows
        yield rows
    if heading:
        write_heading(text, without_vector(example()))
    text.flush()
    text.detach()


def without_vector(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != VECTOR}


TABLES: dict[str, Writer] = {
    ".jsonl": write_jsonl,
    ".tsv": partial(write_table, dialect="excel-tab"),
    ".csv": partial(write_table, dialect="excel"),
    ".parquet": write_parquet,
}
MATRICES: dict[str, Writer] = {
    ".npy": write_npy,
    ".txt": write_word2vec,
    ".vec": write_word2vec,
    ".safetensors": write_safetensors,
}
FORMATS = TABLES | MATRICES
