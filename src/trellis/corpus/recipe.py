"""Resolved preprocessing options. Each is the user's choice, else the default of the source, else the general
default."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trellis.config import DataConfig
from trellis.corpus.headings import compile_heading
from trellis.corpus.read import DOCUMENT_MARKERS, find_reader, reader_of_suffix
from trellis.corpus.tokenize import TOKENIZERS
from trellis.errors import TrellisError
from trellis.options import choose

# A WikiText article: ` = Title = ` (but not ` = = Section = = `) between two blank lines, starting at the first.
WIKITEXT_ARTICLE = r"^[^\S\n]*\n ?= [^=\n].* = ?\n(?=[^\S\n]*\n)"

SOURCE_CHOICES: Mapping[str, Mapping[str, Any]] = {
    "python-docs": {"tokenizer": "words", "lower": True, "min_count": 2},
    "ptb": {"documents": "file", "min_count": 1},
    "wikitext-2": {"documents": "heading", "min_count": 1},
    "text8": {"documents": "file", "min_count": 5},
}


@dataclass(frozen=True)
class Recipe:
    """The options of DataConfig, all resolved."""

    reader: str = "text"
    column: str = ""
    tokenizer: str = "whitespace"
    documents: str = "blank"
    heading: str = WIKITEXT_ARTICLE
    lower: bool = False
    digits: bool = False
    unk: bool = True
    min_count: int | None = None  # None: see `default_min_count` in trellis.corpus.encode
    max_size: int = 0
    min_letters: float = 0.0
    valid_fraction: float = 0.05
    test_fraction: float = 0.05

    @property
    def exact(self) -> bool:
        """Whether every byte of a file is kept."""
        return self.reader == "text" and TOKENIZERS[self.tokenizer].exact


def make_recipe(config: DataConfig, suffix: str = "", default: str = "text") -> Recipe:
    """Resolve the options that are None in `config`. `suffix` is the suffix of the source's first file. `default` is
    the reader of files whose suffix belongs to no reader."""
    names = {field.name for field in fields(Recipe)}
    chosen = {name: value for name, value in asdict(config).items() if name in names and value is not None}
    known = SOURCE_CHOICES.get(config.source, {})
    reader = chosen.get("reader") or reader_of_suffix(suffix, "text" if known else default)
    own = {**find_reader(reader).choices, **known}
    recipe = Recipe(**{"reader": reader, **own, **chosen})
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe, column: str = "data.column") -> None:
    """Raise on options that are not recognised or do not fit together. `column` is the name of the option `column` in
    error messages."""
    for field, known in (("tokenizer", TOKENIZERS), ("documents", DOCUMENT_MARKERS)):
        choose(known, getattr(recipe, field), f"data.{field}")
    if recipe.reader == "csv" and not recipe.column:
        raise TrellisError(f'A CSV source needs {column}: a header name, an index, or "id:event".')
    if (recipe.min_count or 0) < 0 or recipe.max_size < 0:
        raise TrellisError("data.min_count and data.max_size must not be negative.")
    if not 0 <= recipe.min_letters <= 1:
        raise TrellisError(f"data.min_letters is {recipe.min_letters}; it must be between 0 and 1.")
    fractions = recipe.valid_fraction, recipe.test_fraction
    if not (min(fractions) >= 0 and sum(fractions) < 1):
        raise TrellisError("data.valid_fraction and data.test_fraction must sum to less than 1.")
    compile_heading(recipe.heading)
