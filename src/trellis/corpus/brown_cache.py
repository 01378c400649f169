"""Brown classes that were found before: the same text, number of classes and seed give the same ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from trellis.corpus.brown import brown_clusters
from trellis.corpus.cache import cache_folder
from trellis.storage import atomic_write

FORMAT = 1  # one more where the algorithm finds others


def brown_classes(
    tokens: np.ndarray, classes: int, vocab_size: int, seed: int, alone: tuple[int, ...] = ()
) -> np.ndarray:
    """The class of each word, those `alone` by themselves: [V]; from the cache where it is there, whole and sound."""
    choices = FORMAT, classes, vocab_size, seed, str(tokens.dtype), *alone
    digest = hashlib.sha256(repr(choices).encode())
    digest.update(np.ascontiguousarray(tokens).data)
    path = cache_folder() / "classes" / f"{classes}-{digest.hexdigest()[:16]}.npy"
    found = read(path, classes, vocab_size)
    if found is None:
        found = brown_clusters(tokens, classes, vocab_size=vocab_size, seed=seed, alone=alone).assignment
        with atomic_write(path) as file:
            np.save(file, found, allow_pickle=False)
    return found


def read(path: Path, classes: int, vocab_size: int) -> np.ndarray | None:
    """What a file of the cache holds; None where it is not there or is broken."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    sound = found.shape == (vocab_size,) and found.dtype.kind == "i" and 0 <= found.min() <= found.max() < classes
    return found if sound else None
