"""trellis embed"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from trellis.cli.arguments import TOKENS, add_jobs, add_text, chunks_of, positive
from trellis.cli.console import Answer, Block, Lines, Note, Rows, Table
from trellis.cli.features import FORMATS, VECTOR, check_format, flat, nested, word2vec, write_features
from trellis.cli.jobs import each_chunk

SUMMARY = "compute contextual features of every token"
EXAMPLE = "trellis embed demo -o features.jsonl < text"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    add_jobs(parser)
    parser.add_argument(
        "--what", choices=("posterior", "filtered", "viterbi", "smoothed", "type"), help="the kind of features"
    )
    parser.add_argument("--top", type=positive, metavar="N", help="the N most probable states instead of the vector")
    parser.add_argument("-o", "--output", type=Path, help=f"output file: {', '.join(FORMATS)}")


def run(args: argparse.Namespace) -> Answer:
    if args.output is not None:
        check_format(args.output, args.top)
    from trellis.models.files import load
    from trellis.models.reading import check_top

    model = load(args.model, None, args.device)
    model.embed([], args.what)  # raises before any text is read
    check_top(model, args.top)
    if args.output is None:
        args.top = args.top or (1 if model.sizes else 0)
        return Answer(Rows(([*map(nested, rows)] for rows in token_chunks(args, model)), shown, cells=flat))
    tokens, dimensions = 0, 0

    def counted() -> Iterator[list[dict[str, Any]]]:
        nonlocal tokens, dimensions
        for rows in token_chunks(args, model):
            tokens += len({(row["sentence"], row["number"]) for row in rows})
            dimensions = len(rows[0].get(VECTOR, ())) if rows else dimensions
            yield rows

    def example() -> dict[str, Any]:
        nonlocal dimensions
        row = example_row(model, args.what, args.top or 0)
        dimensions = len(row.get(VECTOR, ()))
        return row

    write_features(args.output, counted(), example)
    data = {"output": str(args.output), "tokens": tokens} | ({} if args.top else {"dimensions": dimensions})
    about = "" if args.top else f" x {dimensions} dimensions"
    return Answer(data, [Note(f"{args.output}: {tokens} tokens{about}")])


def token_chunks(args: argparse.Namespace, model: Any) -> Iterator[list[dict[str, Any]]]:
    """Rows of tokens; a chunk of sentences has about as many numbers as a batch of inference."""
    from trellis.models.text import ENTRIES

    chunks = chunks_of(args, model, max(1, min(TOKENS, ENTRIES // model.width)))
    return each_chunk(partial(rows_of, args, model), chunks, args.jobs, model.device.type)


def rows_of(args: argparse.Namespace, model: Any, chunk: list[Any]) -> list[dict[str, Any]]:
    """The rows of the tokens of some sentences."""
    from trellis.models.reading import token_rows, with_spans

    placed = [with_spans(model, one, args.pretokenized) for one in chunk]
    return list(token_rows(model, placed, args.what, args.top or 0))


def example_row(model: Any, what: str | None, top: int) -> dict[str, Any]:
    """An example of a row, for files without tokens."""
    import numpy as np

    from trellis.models.reading import Sentence, token_rows

    sentence = Sentence(1, "", "", [model.vocab.words[0]], np.zeros(1, np.int64))
    return next(token_rows(model, [sentence], what, top))


def shown(rows: list[dict[str, Any]]) -> list[Block]:
    """A table of states, or vectors in the word2vec format."""
    if rows and VECTOR in rows[0]:
        return [Lines(map(word2vec, rows))]
    hidden = "sentence", "number", "start", "end"
    return [Table("", [{name: value for name, value in row.items() if name not in hidden} for row in rows])]
