"""Batches of a split, resumable at any batch; the shuffle depends only on the seed and the epoch."""

import heapq
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from trellis import distributed
from trellis.corpus.splits import Split
from trellis.errors import TrellisError
from trellis.types import Batch


class Windows(NamedTuple):
    """A batch whose row b holds the `lengths[b]` tokens of the split that start at `starts[b]`."""

    starts: np.ndarray  # [B]
    lengths: np.ndarray  # [B], each at least 1
    fresh: np.ndarray  # [B] bool: whether a row starts anew; if not, it continues the same row of the previous batch


class Batches(ABC):
    """Batches of a split. A loop over this object yields the remaining batches of the current epoch. These are all its
    batches, unless an earlier loop was left early or `restore` was called."""

    def __init__(self, split: Split) -> None:
        if not split.tokens.size:
            raise TrellisError("The split is empty: it has no tokens to batch.")
        self.split = split
        self.epoch = self.position = 0
        self.shared = False  # whether the rows are divided among the processes of a job

    @property
    def tokens(self) -> int:
        """The number of tokens in an epoch."""
        return int(self.split.tokens.size)

    @abstractmethod
    def __len__(self) -> int:
        """The number of batches in the current epoch."""

    @abstractmethod
    def _windows(self, position: int) -> Windows:
        """The windows of batch `position` in the current epoch."""

    def __iter__(self) -> Iterator[Batch]:
        while self.position < len(self):
            self.position += 1
            text, windows = self._text(self.position - 1), self._windows(self.position - 1)
            yield self._own_batch(text, windows) if self.shared else _batch(text, windows)
        self.epoch, self.position = self.epoch + 1, 0

    def share(self) -> Self:
        """Give each process of the job its own rows of every batch."""
        self.shared = distributed.size() > 1
        return self

    def rows(self) -> int:
        """The maximum number of rows that continue from one batch to the next; 0 if none do."""
        return 0

    def own_rows(self) -> slice:
        """This process's share of the rows that continue from one batch to the next."""
        return distributed.share_of(self.rows())

    def _text(self, position: int) -> np.ndarray:
        """The tokens to which the windows of batch `position` refer."""
        return self.split.tokens

    def _own_batch(self, text: np.ndarray, windows: Windows) -> Batch:
        """The rows of a batch that belong to this process. If there are none, it gets the first row, marked as idle.

        `equal_lengths`, `all_fresh` and `total` describe the whole batch, so that all processes compute in the same
        way."""
        count = len(windows.starts)
        begin, end, _ = (self.own_rows() if self.rows() else distributed.share_of(count)).indices(count)
        idle = begin >= end
        chosen = slice(0, 1) if idle else slice(begin, end)
        batch = _batch(text, Windows(*(field[chosen] for field in windows)))
        equal = bool((windows.lengths == windows.lengths[0]).all())
        total = int(windows.lengths.sum())
        return batch._replace(equal_lengths=equal, all_fresh=_all_fresh(windows), total=total, idle=idle)

    def windows(self) -> Iterator[Windows]:
        """The windows of every batch in the current epoch, in order."""
        return (self._windows(position) for position in range(len(self)))

    def each(self, answer: Callable[[Batch], Tensor]) -> list[np.ndarray]:
        """Apply `answer` to every batch, and return its results in text order, one array per window. For a batch of B
        rows of T tokens, `answer` returns [B, T, ...]."""
        found: list[tuple[int, np.ndarray]] = []
        for batch, windows in zip(self, self.windows(), strict=True):
            rows = zip(windows.starts, windows.lengths, answer(batch).cpu().numpy(), strict=True)
            found += [(int(start), row[:length]) for start, length, row in rows]
        return [row for _, row in sorted(found, key=lambda one: one[0])]

    def state(self) -> dict[str, int]:
        """The number of the epoch, and how many of its batches have been yielded."""
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: dict[str, int]) -> None:
        """Continue from a position that `state` returned."""
        self.epoch, self.position = operator.index(state["epoch"]), operator.index(state["position"])
        if self.epoch < 0 or not 0 <= self.position <= len(self):
            raise ValueError(f"it is at batch {self.position} of {len(self)} in epoch {self.epoch}")


def _batch(tokens: np.ndarray, windows: Windows) -> Batch:
    """Gather the tokens of the windows into a batch, padded with 0 on the right."""
    steps = np.arange(windows.lengths.max())
    inside = steps < windows.lengths[:, None]
    ids = tokens[np.where(inside, windows.starts[:, None] + steps, 0) % tokens.size]
    padded = np.where(inside, ids, 0).astype(np.int64)
    lengths, fresh = torch.from_numpy(windows.lengths.astype(np.int64)), torch.from_numpy(windows.fresh)
    return Batch(torch.from_numpy(padded), lengths, fresh, bool(inside.all()), _all_fresh(windows))


def _all_fresh(windows: Windows) -> bool | None:
    """True if all rows are fresh, False if none are, None if only some are."""
    return bool(windows.fresh[0]) if (windows.fresh == windows.fresh[0]).all() else None


class Streams(Batches):
    """The split as `lanes` parallel streams; row b of each batch continues row b of the previous one.

    Windows have `window` tokens; the last one of a stream may have fewer, or one more. `rotate` makes the text circular
    and starts each epoch at a different offset, so that window boundaries differ between epochs."""

    def __init__(self, split: Split, lanes: int, window: int, seed: int = 0, rotate: bool = False) -> None:
        super().__init__(split)
        _require_positive(lanes=lanes, window=window)
        self.window, self.seed, self.rotate = window, seed, rotate
        lanes = min(lanes, self.tokens)
        self.bounds = np.arange(lanes + 1) * self.tokens // lanes

    def rows(self) -> int:
        return len(self.bounds) - 1

    def __len__(self) -> int:
        return -(-int(np.diff(self.bounds).min()) // self.window)

    def _windows(self, position: int) -> Windows:
        starts = self.bounds[:-1] + position * self.window
        left = self.bounds[1:] - starts
        lengths = left if position == len(self) - 1 else np.full_like(left, self.window)
        turn = int(np.random.default_rng([self.seed, self.epoch]).integers(self.tokens)) if self.rotate else 0
        return Windows(starts + turn, lengths, np.full(starts.size, position == 0))


class Sentences(Batches):
    """Batches of whole sentences of similar length, with at most `tokens_per_batch` tokens, padding included. A longer
    sentence is a batch of its own."""

    def __init__(self, split: Split, tokens_per_batch: int, seed: int = 0, shuffle: bool = True) -> None:
        super().__init__(split)
        _require_positive(tokens_per_batch=tokens_per_batch)
        self.seed, self.shuffle = seed, shuffle
        self.lengths = np.diff(split.sentences)
        self.cuts = _cut_by_padded_size(-np.sort(-self.lengths), tokens_per_batch)
        self._order = lru_cache(maxsize=1)(self._order_of_epoch)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def _windows(self, position: int) -> Windows:
        sentences, batches = self._order(self.epoch)
        start, stop = self.cuts[batches[position]], self.cuts[batches[position] + 1]
        chosen = sentences[start:stop]
        return Windows(self.split.sentences[chosen], self.lengths[chosen], np.ones(chosen.size, bool))

    def _order_of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The sentences in descending order of length, with ties in random order, and the random order of the
        batches."""
        order = _permuted(self.lengths.size, self.seed, epoch, self.shuffle)
        sentences = order[np.argsort(-self.lengths[order], kind="stable")]
        return sentences, _permuted(len(self), self.seed, epoch, self.shuffle)


class Documents(Batches):
    """Documents in random order, read in windows by `lanes` parallel rows; `fresh` marks the start of a document.

    Each row reads one document after another. Near the end of an epoch, batches have fewer rows; row b still continues
    row b of the previous batch.
    """

    def __init__(self, split: Split, lanes: int, window: int, seed: int = 0, shuffle: bool = True) -> None:
        super().__init__(split)
        _require_positive(lanes=lanes, window=window)
        self.window, self.seed, self.shuffle = window, seed, shuffle
        self.lengths = np.diff(split.documents)
        self.lanes = min(lanes, self.lengths.size)
        self._schedule = lru_cache(maxsize=1)(self._schedule_of_epoch)

    def rows(self) -> int:
        return self.lanes

    def __len__(self) -> int:
        return self._schedule(self.epoch)[0].starts.size

    def _windows(self, position: int) -> Windows:
        rows = [lane for lane in self._schedule(self.epoch) if position < lane.starts.size]
        return Windows(*(np.array([field[position] for field in fields]) for fields in zip(*rows, strict=True)))

    def _schedule_of_epoch(self, epoch: int) -> list[Windows]:
        """The windows of each row, longest row first. Each document goes to the row that becomes free first."""
        counts = -(-self.lengths // self.window)
        free = [(0, lane) for lane in range(self.lanes)]
        documents: list[list[int]] = [[] for _ in free]
        for document in _permuted(self.lengths.size, self.seed, epoch, self.shuffle).tolist():
            load, lane = free[0]
            heapq.heapreplace(free, (load + int(counts[document]), lane))
            documents[lane].append(document)
        rows = [self._cut_into_windows(np.array(chosen), counts[chosen]) for chosen in documents]
        return sorted(rows, key=lambda row: -row.starts.size)

    def _cut_into_windows(self, documents: np.ndarray, counts: np.ndarray) -> Windows:
        """The windows of the given documents, in order."""
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # within its document
        skipped = number * self.window
        starts = np.repeat(self.split.documents[documents], counts) + skipped
        left = np.repeat(self.lengths[documents], counts) - skipped
        return Windows(starts, np.minimum(left, self.window), number == 0)


def _permuted(size: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size) if shuffle else np.arange(size)


def _cut_by_padded_size(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Start offsets of the batches into which sentences are divided, given their lengths in descending order. In each
    batch of several sentences, the number of rows times the longest length is at most `budget`."""
    cuts = [0]
    while cuts[-1] < lengths.size:
        cuts.append(min(cuts[-1] + max(1, budget // int(lengths[cuts[-1]])), lengths.size))
    return np.array(cuts)


def _require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise TrellisError(f"{name} is {number}; it must be at least 1.")
