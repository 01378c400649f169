"""A corpus ready to use: from the cache where it has been encoded before, else encoded now."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trellis.config import DataConfig
from trellis.corpus.cache import cache_folder, new_entry
from trellis.corpus.encode import SPLITS, Split, encode_corpus, open_split
from trellis.corpus.recipe import Recipe, make_recipe
from trellis.corpus.sources import Source, find_source
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError
from trellis.progress import progress
from trellis.storage import write_text

FORMAT = 1  # raise it when the same text would be encoded otherwise
META, VOCAB = "meta.json", "vocab.json"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Corpus:
    """A vocabulary and the splits encoded with it; `corpus["train"]` is `corpus.splits["train"]`."""

    vocab: Vocabulary
    splits: dict[str, Split]
    description: str

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise TrellisError(f"The corpus has no {name} split; it has {', '.join(self.splits)}.")
        return self.splits[name]


def load_corpus(config: DataConfig, cache: Path | None = None, vocab: Vocabulary | None = None) -> Corpus:
    """The corpus that `config` describes, encoded once and then memory-mapped from the cache.

    The key of the cache is the content of the files, the recipe, the format and, where the words are not to be chosen
    from the training split, the vocabulary.
    """
    with find_source(config.source, cache) as source:
        recipe = make_recipe(config, source.suffix)
        target = cache_folder(cache) / "corpora" / f"{source.name}-{_fingerprint(source, recipe, vocab)}"
        if not _is_intact(target):
            with new_entry(target, _is_intact) as folder:
                _build(source, recipe, vocab, folder)
        return _open(target, source.description)


def _build(source: Source, recipe: Recipe, known: Vocabulary | None, folder: Path) -> None:
    workshop = folder.parent / "workshop"
    workshop.mkdir()
    size = sum(path.stat().st_size for paths in source.files.values() for path in paths)
    with progress(f"encode {source.name}", size, "bytes") as bar:
        vocab = encode_corpus(source, recipe, folder, workshop, bar.advance, known)
    write_text(folder / VOCAB, vocab.to_json())
    meta = {
        "splits": [name for name in SPLITS if (folder / f"{name}.tokens").exists()],
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "recipe": asdict(recipe),
    }
    write_text(folder / META, json.dumps(meta, indent=1))


def _is_intact(folder: Path) -> bool:
    """Whether every file is there and as long as when it was written."""
    try:
        sizes = json.loads((folder / META).read_text(encoding="utf-8"))["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _open(folder: Path, origin: str) -> Corpus:
    names = json.loads((folder / META).read_text(encoding="utf-8"))["splits"]
    splits = {name: open_split(folder / name) for name in names}
    vocab = Vocabulary.from_json((folder / VOCAB).read_text(encoding="utf-8"))
    sizes = " / ".join(f"{split.tokens.size:,}" for split in splits.values())
    return Corpus(vocab, splits, f"{origin}: {sizes} tokens ({' / '.join(names)}), {len(vocab):,} words")


def _fingerprint(source: Source, recipe: Recipe, vocab: Vocabulary | None) -> str:
    """A hash of the bytes of all files, by split, and of all that decides how they are encoded."""
    digest = hashlib.sha256(json.dumps([FORMAT, asdict(recipe)]).encode())
    digest.update((vocab.to_json() if vocab else "").encode())
    for split, paths in source.files.items():
        for path in paths:
            digest.update(f"{split} {path.suffix} {path.stat().st_size}\n".encode())
            _add_file(digest, path)
    return digest.hexdigest()[:16]


def _add_file(digest: Any, path: Path) -> None:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise TrellisError(f"Cannot read {path}: {error.strerror or error}.") from error
