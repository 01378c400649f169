"""trellis embed"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trellis.cli.arguments import add_text, lines_of
from trellis.cli.console import Answer, Lines, Note, Table
from trellis.errors import TrellisError

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "compute contextual features of every token"
EXAMPLE = "trellis embed runs/demo -o features.npy < text"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument(
        "--what", choices=("posterior", "filtered", "viterbi", "smoothed", "type"), help="which features"
    )
    parser.add_argument("-o", "--output", type=Path, help="output file, one float32 row per token: .npy, .txt or .vec "
                        "(word2vec), .safetensors")  # fmt: skip


def run(args: argparse.Namespace) -> Answer:
    import numpy as np

    from trellis.models.files import load

    model, lines = load(args.model, None, args.device), list(lines_of(args))
    table = np.concatenate(model.embed(lines, args.what))
    words = [word for line in lines for word in model.vocab.split(line)]
    if args.output is not None:
        write_vectors(args.output, words, table)
        data = {"output": str(args.output), "tokens": len(words), "dimensions": table.shape[1]}
        return Answer(data, [Note(f"{args.output}: {len(words)} tokens x {table.shape[1]} dimensions")])
    if model.sizes:
        best = best_states(words, table, np.cumsum(model.sizes)[:-1].tolist())
        return Answer(best, [Table("", best)])
    rows = [{"token": word, "vector": row.tolist()} for word, row in zip(words, table, strict=True)]
    return Answer(rows, [Lines(word2vec_lines(words, table))])


def best_states(words: list[str], table: np.ndarray, ends: Sequence[int]) -> list[dict[str, Any]]:
    """The most probable state of each layer; a row concatenates the layers, and a single layer has no number."""
    best = []
    for word, row in zip(words, table, strict=True):
        for m, (begin, end) in enumerate(zip([0, *ends], [*ends, len(row)], strict=True)):
            probs = row[begin:end]
            layer = {"layer": m} if ends else {}
            best.append({"token": word, **layer, "state": int(probs.argmax()), "probability": float(probs.max())})
    return best


def write_vectors(path: Path, words: list[str], table: np.ndarray) -> None:
    """Write vectors [n, h] in the format given by the file's suffix."""
    if path.suffix not in FORMATS:
        raise TrellisError(f"{path} has an unsupported suffix; use one of {', '.join(FORMATS)}.")
    from trellis.storage import atomic_write

    with atomic_write(path) as file:
        FORMATS[path.suffix](file, words, table)


def word2vec_lines(words: list[str], table: np.ndarray) -> Iterable[str]:
    """The word2vec text format: the number and size of the vectors, then one line each."""
    yield f"{len(table)} {table.shape[1]}"
    for word, row in zip(words, table, strict=True):
        yield f"{word} " + " ".join(f"{value:.6g}" for value in row)


def write_word2vec(file: BinaryIO, words: list[str], table: np.ndarray) -> None:
    file.writelines(f"{line}\n".encode() for line in word2vec_lines(words, table))


def write_npy(file: BinaryIO, words: list[str], table: np.ndarray) -> None:
    import numpy as np

    np.save(file, table)


def write_safetensors(file: BinaryIO, words: list[str], table: np.ndarray) -> None:
    from trellis.storage import write_tensors

    write_tensors(file, {"vectors": table}, {"tokens": "\n".join(words)})


FORMATS: dict[str, Callable[[BinaryIO, list[str], np.ndarray], None]] = {
    ".npy": write_npy,
    ".txt": write_word2vec,
    ".vec": write_word2vec,
    ".safetensors": write_safetensors,
}
