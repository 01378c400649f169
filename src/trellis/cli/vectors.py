"""The commands that ask a linear dynamical system: vectors, neighbours, dynamics."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from trellis.cli import console
from trellis.cli.console import Answer
from trellis.errors import TrellisError
from trellis.families.lds.model import LDS
from trellis.families.lds.sections import draw_dynamics
from trellis.models.files import load
from trellis.storage import atomic_write, save_tensors, write_text

DEFAULT = "smoothed"


def embed(model: LDS, args: argparse.Namespace, lines: Iterable[str]) -> Answer:
    words: list[str] = []
    vectors = []
    for line in lines:
        words += model.vocab.decode(model.encode_line(line)[0].tolist())
        vectors += model.transform(line, args.what or DEFAULT)
    table = torch.cat(vectors).float().cpu().numpy()
    if args.output is None:
        rows = [{"token": word, "vector": row.tolist()} for word, row in zip(words, table, strict=True)]
        return Answer(rows, lambda: console.show_lines(word2vec_lines(words, table)))
    write_vectors(args.output, words, table)
    data = {"output": str(args.output), "tokens": len(words), "dimensions": table.shape[1]}
    return Answer(data, lambda: console.note(f"{args.output}: {len(words)} tokens x {table.shape[1]} dimensions"))


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
    model = dynamical(load(args.model), "neighbours")
    words = model.vocab.decode(model.encode_line(args.text)[0].tolist())
    if args.word not in words:
        raise TrellisError(f"The word {args.word!r} is not in the text as the model reads it: {' '.join(words)}.")
    found = model.neighbours(args.text, words.index(args.word), args.n)
    rows = [{"word": word, "cosine": cosine} for word, cosine in found]
    return Answer(rows, lambda: console.show_rows(f"near {args.word!r} here", ["word", "cosine"], rows))


def dynamics(args: argparse.Namespace) -> Answer:
    if args.plot is not None and args.plot.suffix != ".svg":
        raise TrellisError(f"The picture {args.plot} would be SVG; name a file that ends in .svg.")
    pairs = dynamical(load(args.model), "dynamics").dynamics(args.n, args.words)
    if args.plot is not None:
        write_text(args.plot, f"{draw_dynamics(pairs)}\n")
    rows = [{"value": p.value, "from": " ".join(p.before), "to": " ".join(p.after)} for p in pairs]
    return Answer(rows, lambda: console.show_rows("singular vector pairs", ["value", "from", "to"], rows))


def dynamical(model: object, command: str) -> LDS:
    if not isinstance(model, LDS):
        raise TrellisError(f"'trellis {command}' asks a linear dynamical system; train one with --model lds.")
    return model
