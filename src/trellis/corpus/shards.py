"""A training text in many files (shards), read as a stream. One encoded shard at a time is in memory; none is
written to disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from trellis.corpus.batches import Batches, Streams, Windows
from trellis.corpus.cache import cache_folder
from trellis.corpus.counting import ids_of_file, tokens_of_file
from trellis.corpus.recipe import Recipe
from trellis.corpus.records import files_of
from trellis.corpus.splits import TOKEN, Split
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError
from trellis.progress import progress
from trellis.storage import write_text


class Shards(Batches):
    """Batches of a text in shards, in a new random order in each epoch.

    A shard is read by `lanes` parallel streams, as in `Streams`, starting at a random offset. At the beginning of a
    shard, every stream starts anew. The order and the offsets depend only on the seed and the epoch, so a run can
    be resumed within a shard."""

    def __init__(
        self, paths: Sequence[Path], sizes: Sequence[int], vocab: Vocabulary, recipe: Recipe,
        lanes: int, window: int, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(Split(np.zeros(1, TOKEN), np.zeros(1), np.zeros(1)))  # never read
        if min(sizes) < lanes:
            small = paths[int(np.argmin(sizes))]
            raise TrellisError(
                f"{small} has {min(sizes)} tokens, too few for {lanes} lanes; join it with another shard."
            )
        self.paths, self.sizes, self.vocab, self.recipe = list(paths), np.array(sizes), vocab, recipe
        self.lanes, self.window, self.seed = lanes, window, seed
        self.lengths = -(-(self.sizes // lanes) // window)  # batches of each shard
        self._read = lru_cache(maxsize=1)(self._read_shard)

    @property
    def tokens(self) -> int:
        return int(self.sizes.sum())

    def rows(self) -> int:
        return self.lanes

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def _text(self, position: int) -> np.ndarray:
        return self._read(self._place(position)[0])

    def _windows(self, position: int) -> Windows:
        shard, within = self._place(position)
        text = self._text(position)
        streams = Streams(
            Split(text, np.zeros(1), np.zeros(1)), self.lanes, self.window, self.seed + shard, rotate=True
        )
        streams.epoch = self.epoch
        return streams._windows(within)

    def _place(self, position: int) -> tuple[int, int]:
        """The shard of a batch, and the number of the batch within it."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.paths))
        ends = np.cumsum(self.lengths[order])
        turn = int(np.searchsorted(ends, position, side="right"))
        return int(order[turn]), position - int(ends[turn] - self.lengths[order[turn]])

    def _read_shard(self, shard: int) -> np.ndarray:
        path = self.paths[shard]
        text = encoded(path, self.vocab, self.recipe)
        if text.size != self.sizes[shard]:
            raise TrellisError(f"{path} has changed: it had {self.sizes[shard]:,} tokens and now has {text.size:,}.")
        return text


def open_shards(
    pattern: str, vocab: Vocabulary, recipe: Recipe, lanes: int, window: int, seed: int = 0, cache: Path | None = None
) -> Shards:
    """Open the shards in a folder, or those whose names match a pattern. Their tokens are counted the first time."""
    paths = [path for path in files_of(Path(pattern).expanduser()) if path is not None]
    if not paths[0].exists():
        raise TrellisError(f"data.shards: there is no file or folder {pattern}.")
    return Shards(paths, count_tokens(paths, recipe, cache), vocab, recipe, lanes, window, seed)


def count_tokens(paths: Sequence[Path], recipe: Recipe, cache: Path | None = None) -> list[int]:
    """The number of tokens of each file, kept in the cache until a file changes."""
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    digest = hashlib.sha256(repr((recipe, files)).encode()).hexdigest()[:16]
    known = cache_folder(cache) / "shards" / f"{digest}.json"
    if known.exists():
        return [int(size) for size in json.loads(known.read_text(encoding="utf-8"))]
    sizes = []
    with progress("counting the tokens of shards", len(paths), "shards") as bar:
        for path in paths:
            sizes.append(sum(map(len, tokens_of_file(path, recipe))))
            bar.advance()
    write_text(known, json.dumps(sizes))
    return sizes


def encoded(path: Path, vocab: Vocabulary, recipe: Recipe) -> np.ndarray:
    """The token ids of a file, as int32."""
    blocks = [ids.astype(TOKEN) for ids in ids_of_file(path, vocab, recipe)]
    return np.concatenate([np.zeros(0, TOKEN), *blocks])
