"""A reader of JSON Lines: each object is a document; its text is under the key `data.column` ("text" by default)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from trellis.corpus.read import Reader, Report, lines_of
from trellis.corpus.recipe import Recipe
from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.errors import TrellisError


def read(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    key = recipe.column or "text"
    for number, line in enumerate(lines_of(path, recipe, report), 1):
        try:
            text = str(json.loads(line)[key]) if line.strip() else ""
        except (ValueError, LookupError, TypeError) as error:
            raise TrellisError(f"{path}, line {number}: no JSON object with a key {key!r}.") from error
        if text.strip():
            yield DOCUMENT + text.strip().replace(DOCUMENT, " ") + LINE


READER = Reader(read, suffixes=(".jsonl",), choices={"tokenizer": "words", "lower": True})
