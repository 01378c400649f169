"""The commands about vectors of words: those of every model, and the neighbours and dynamics of an lds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from trellis.cli import console
from trellis.cli.commands import lines_of
from trellis.cli.console import Answer
from trellis.errors import TrellisError
from trellis.families.lds.model import LDS
from trellis.families.lds.sections import draw_dynamics
from trellis.models.files import load
from trellis.models.text import sentences_of
from trellis.storage import atomic_write, save_tensors, write_text


def embed(args: argparse.Namespace) -> Answer:
    model, lines = load(args.model, None, args.device), list(lines_of(args))
    table = np.concatenate(model.embed(lines, args.what))
    words = [word for ids in sentences_of(model, lines).sentences for word in model.vocab.decode(ids)]
    if args.output is not None:
        write_vectors(args.output, words, table)
        data = {"output": str(args.output), "tokens": len(words), "dimensions": table.shape[1]}
        return Answer(data, lambda: console.note(f"{args.output}: {len(words)} tokens x {table.shape[1]} dimensions"))
    if model.sizes:
        best = best_states(words, table, model.sizes)
        return Answer(best, lambda: console.show_rows("", list(best[0]), best))
    rows = [{"token": word, "vector": row.tolist()} for word, row in zip(words, table, strict=True)]
    return Answer(rows, lambda: console.show_lines(word2vec_lines(words, table)))


def best_states(words: list[str], table: np.ndarray, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The most probable state of each layer, out of rows that hold the layers side by side; one layer has no number."""
    best = []
    for word, row in zip(words, table, strict=True):
        for m, probs in enumerate(np.split(row, np.cumsum(sizes)[:-1])):
            layer = {"layer": m} if len(sizes) > 1 else {}
            best.append({"token": word, **layer, "state": int(probs.argmax()), "probability": float(probs.max())})
    return best


def write_vectors(path: Path, words: list[str], table: np.ndarray) -> None:
    """Vectors [n, h] in the format that the name of the file asks for."""
    if path.suffix == ".safetensors":
        save_tensors(path, {"vectors": torch.from_numpy(table)}, {"tokens": "\n".join(words)})
        return
    if path.suffix not in FORMATS:
        raise TrellisError(f"{path} has a name of no known format; let it end in .safetensors, {', '.join(FORMATS)}.")
    with atomic_write(path) as file:
        FORMATS[path.suffix](file, words, table)


def word2vec_lines(words: list[str], table: np.ndarray) -> Iterable[str]:
    """The word2vec text format: how many, of what size, and a line for each."""
    yield f"{len(table)} {table.shape[1]}"
    for word, row in zip(words, table, strict=True):
        yield f"{word} " + " ".join(f"{value:.6g}" for value in row)


def write_word2vec(file: BinaryIO, words: list[str], table: np.ndarray) -> None:
    file.writelines(f"{line}\n".encode() for line in word2vec_lines(words, table))


FORMATS: dict[str, Callable[[BinaryIO, list[str], np.ndarray], None]] = {
    ".npy": lambda file, words, table: np.save(file, table),
    ".txt": write_word2vec,
    ".vec": write_word2vec,
}


def neighbours(args: argparse.Namespace) -> Answer:
    model = load(args.model, LDS)
    words = model.vocab.decode(model.encode_line(args.text)[0].tolist())
    if args.word not in words:
        raise TrellisError(f"The word {args.word!r} is not in the text as the model reads it: {' '.join(words)}.")
    found = model.neighbours(args.text, words.index(args.word), args.n)
    rows = [{"word": word, "cosine": cosine} for word, cosine in found]
    return Answer(rows, lambda: console.show_rows(f"near {args.word!r} here", ["word", "cosine"], rows))


def dynamics(args: argparse.Namespace) -> Answer:
    if args.plot is not None and args.plot.suffix != ".svg":
        raise TrellisError(f"The picture {args.plot} would be SVG; name a file that ends in .svg.")
    pairs = load(args.model, LDS).dynamics(args.n, args.words)
    if args.plot is not None:
        write_text(args.plot, f"{draw_dynamics(pairs)}\n")
    rows = [{"value": p.value, "from": " ".join(p.before), "to": " ".join(p.after)} for p in pairs]
    return Answer(rows, lambda: console.show_rows("singular vector pairs", ["value", "from", "to"], rows))
