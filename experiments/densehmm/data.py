"""The sequences of the DenseHMM experiments: synthetic sequences, proteins, part-of-speech tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from experiments.densehmm.metrics import Array, Probabilities, analytic, counted, draw
from trellis.corpus.sources import data_folder
from trellis.errors import TrellisError
from trellis.inference.stationary import stationary

CONCENTRATION = 0.1  # of the Dirichlet distributions
SEQUENCES, LENGTH = 10, 200  # synthetic, of train and of test
LONGEST = {"proteins": 512, "tags": 40}
RARE = {"proteins": 0.002, "tags": 0.01}  # the rarest symbols, with a total share below this, become one


class Text(NamedTuple):
    """Concatenated sequences."""

    symbols: Array  # [N]
    lengths: Array  # [S]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded [S, T], and the lengths."""
        inside = np.arange(self.lengths.max()) < self.lengths[:, None]
        padded = np.zeros(inside.shape, np.int64)
        padded[inside] = self.symbols
        return torch.from_numpy(padded), torch.from_numpy(self.lengths)


class Split(NamedTuple):
    """The training and test data of a run."""

    train: Text
    test: Text
    truth: Array  # [V, V]: the co-occurrences to reproduce

    @property
    def size(self) -> int:
        return len(self.truth)


def text_of(sequences: Sequence[Array]) -> Text:
    return Text(np.concatenate(sequences).astype(np.int64), np.array([len(part) for part in sequences]))


def synthetic(states: int, symbols: int, seed: int) -> Split:
    """Sequences from a stationary HMM with Dirichlet-distributed rows, and its exact co-occurrences."""
    random = np.random.default_rng(seed)
    transition = random.dirichlet(np.full(states, CONCENTRATION), states)
    emission = random.dirichlet(np.full(symbols, CONCENTRATION), states)
    start = stationary(torch.from_numpy(transition)).clamp(min=0).numpy()
    model = Probabilities(start / start.sum(), transition, emission)
    drawn = draw(model, np.full(2 * SEQUENCES, LENGTH), seed)
    halves = np.split(drawn, 2)
    train, test = (Text(half, np.full(SEQUENCES, LENGTH)) for half in halves)
    return Split(train, test, analytic(model))


def read_proteins() -> list[list[str]]:
    """The chains of a FASTA file."""
    text = (data_folder("pdb") / "pdb_first1024.fasta").read_text(encoding="utf-8")
    return [list("".join(record.split("\n")[1:])) for record in text.split(">")[1:]]


def read_tags() -> list[list[str]]:
    """The tags of every sentence; every second line has its word_TAG tokens."""
    lines = (data_folder("medpost") / "tag_mb.ioc").read_text(encoding="utf-8").splitlines()
    return [[token.rpartition("_")[2] for token in line.split()] for line in lines[1::2] if line.split()]


READERS: dict[str, Callable[[], list[list[str]]]] = {"proteins": read_proteins, "tags": read_tags}


@cache
def read(source: str) -> tuple[list[Array], int]:
    """All sequences, truncated and with rare symbols merged, and the number of remaining symbols."""
    try:
        sequences = [part[: LONGEST[source]] for part in READERS[source]()]
    except OSError as error:
        raise TrellisError(f"Cannot read the {source} in $TRELLIS_DATA: {error}.") from error
    merged = merge_rare(Counter(symbol for part in sequences for symbol in part), RARE[source])
    numbers = {symbol: i for i, symbol in enumerate(sorted(set(merged.values())))}
    return [np.array([numbers[merged[symbol]] for symbol in part]) for part in sequences], len(numbers)


def merge_rare(counts: Counter[str], share: float) -> dict[str, str]:
    """Map the rarest symbols, which together have less than `share` of the counts, to one symbol."""
    room = share * counts.total()
    merged = {symbol: symbol for symbol in counts}
    for symbol, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        room -= count
        if room <= 0:
            break
        merged[symbol] = "\0rare"
    return merged


def split_half(source: str, seed: int) -> Split:
    """Shuffle and split 50:50; the co-occurrences to reproduce are those of the test half."""
    sequences, size = read(source)
    order = np.random.default_rng(seed).permutation(len(sequences))
    half = len(order) // 2
    train, test = (text_of([sequences[i] for i in part]) for part in (order[:half], order[half:]))
    return Split(train, test, counted(*test, size))


def load(source: str, states: int, symbols: int, seed: int) -> Split:
    """The data of one run."""
    if source == "synthetic":
        return synthetic(states, symbols or states, seed)
    if source not in READERS:
        raise TrellisError(f"source is {source!r}; known are synthetic, {', '.join(READERS)}.")
    return split_half(source, seed)
