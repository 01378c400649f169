"""Word representations: encoders that return attributes or vectors for every token of a sentence."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trellis.corpus.brown_paths import read_paths
from trellis.corpus.read import read_lines
from trellis.corpus.tokenize import UNK, treat
from trellis.errors import TrellisError
from trellis.families.crf.templates import Attributes
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM
from trellis.families.lds.model import LDS
from trellis.families.neural.feedforward import FeedForward
from trellis.models.base import PersistedModel
from trellis.models.files import find_model, load
from trellis.options import choose, whole

PREFIXES = 4, 6, 10, 20  # prefix lengths in bits; the full path is an attribute too
LONGEST = 1_000_000  # maximum dimension of a vector
SWEEPS = 5  # mean-field sweeps: enough that the mean-field approximation dominates the error

Sentences = Sequence[Sequence[str]]
Encoded = list[np.ndarray] | list[Attributes]  # vectors [T, D], or attributes, of each sentence


class Encoder(ABC):
    """A representation of words, possibly in context, learned from untagged text."""

    scaled = False  # whether taggers rescale its vectors; not for probabilities

    @abstractmethod
    def encode(self, sentences: Sentences) -> Encoded:
        """Vectors [T, D] of each sentence, or the attributes of its tokens."""


class BrownPaths(Encoder):
    """Prefixes of Brown cluster paths. A word that was not clustered has the path of <unk>, if there is one."""

    def __init__(self, file: Path, device: str = "cpu") -> None:
        words, clusters = read_paths(file)
        self.paths = {word: clusters.paths[c] for word, c in zip(words, clusters.assignment.tolist(), strict=True)}

    def encode(self, sentences: Sentences) -> Encoded:
        return [[prefixes(known(self.paths, word) or self.paths.get(UNK)) for word in s] for s in sentences]


def prefixes(path: str | None) -> list[str]:
    return [] if path is None else [*(f"{n}:{path[:n]}" for n in PREFIXES if n < len(path)), path]


def known(table: dict[str, Any], word: str) -> Any:
    """Look up a word as written, with digits replaced by N, or in lower case."""
    forms = (word, treat(word, False, True), word.lower(), treat(word, True, True))
    return next((table[form] for form in forms if form in table), None)


class WordVectors(Encoder):
    """A vector per word from a file in word2vec text format; zero for words not in it."""

    scaled = True

    def __init__(self, file: Path, device: str = "cpu") -> None:
        first, *rows = [line.rstrip().split(" ") for line in read_lines(file)] or [[]]
        count, size = map(whole, first) if len(first) == 2 else (None, None)
        if count is None or size is None or size > LONGEST:
            raise TrellisError(f"{file}, line 1: expected the number of words and the size of their vectors.")
        if len(rows) != count:
            raise TrellisError(f"{file} contains {len(rows)} vectors, but its first line announces {count}.")
        self.table = {row[0]: read_vector(row[1:], size, f"{file}, line {n}") for n, row in enumerate(rows, 2)}
        self.zero = np.zeros(size, np.float32)

    def encode(self, sentences: Sentences) -> Encoded:
        return [np.stack([self.vector(word) for word in sentence]) for sentence in sentences]

    def vector(self, word: str) -> np.ndarray:
        found = known(self.table, word)
        return self.zero if found is None else found


def read_vector(numbers: list[str], size: int, where: str) -> np.ndarray:
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        vector = np.empty(0, np.float32)
    if len(vector) != size or not np.isfinite(vector).all():
        raise TrellisError(f"{where}: expected a word and {size} numbers.")
    return vector


class ModelEncoder(Encoder):
    """A representation computed by a trained model on whole sentences."""

    def __init__(
        self, kind: type[PersistedModel], compute: Callable[[Any, Sentences], Encoded], file: Path, device: str = "cpu"
    ) -> None:
        self.model, self.compute = load(file, kind, device), compute
        self.scaled = kind in (LDS, FeedForward)

    def encode(self, sentences: Sentences) -> Encoded:
        return self.compute(self.model, sentences)


def hmm_states(model: Any, sentences: Sentences) -> Encoded:
    """The state of each token on the Viterbi path, as attributes."""
    return [[[str(state)] for state in path.states] for path in model.viterbi(sentences)]


def fhmm_states(model: Any, sentences: Sentences) -> Encoded:
    """The most probable state of every layer."""
    paths = model.viterbi(sentences, sweeps=SWEEPS)
    return [[[f"{layer}:{z}" for layer, z in enumerate(states)] for states in path.states] for path in paths]


def fhmm_posterior(model: Any, sentences: Sentences) -> Encoded:
    """q(z_m | x) of every layer, concatenated."""
    return [rows.astype(np.float32) for rows in model.posterior(sentences, sweeps=SWEEPS)]


def lds_centred(model: Any, sentences: Sentences) -> Encoded:
    """Smoothed vectors minus their mean over the sentence.

    The mean depends mostly on the topic, and knowing the topic does not help a tagger on another kind of text."""
    return [rows - rows.mean(0) for rows in model.embed(sentences, "smoothed")]


Maker = Callable[..., Encoder]  # (file, device) -> encoder
OF_FILES: dict[str, Maker] = {"brown": BrownPaths, "vectors": WordVectors}
OF_MODELS: dict[str, Maker] = {
    "hmm": partial(ModelEncoder, HMM, hmm_states),
    "hmm-posterior": partial(ModelEncoder, HMM, lambda model, sentences: model.embed(sentences, "posterior")),
    "fhmm": partial(ModelEncoder, FHMM, fhmm_states),
    "fhmm-posterior": partial(ModelEncoder, FHMM, fhmm_posterior),
    "lds": partial(ModelEncoder, LDS, lambda model, sentences: model.embed(sentences, "smoothed")),
    "lds-centred": partial(ModelEncoder, LDS, lds_centred),
    "feedforward": partial(ModelEncoder, FeedForward, lambda model, sentences: model.embed(sentences, "type")),
}
ENCODERS = OF_FILES | OF_MODELS


def split_spec(spec: str) -> tuple[str, Path]:
    """Split KIND:PATH into an encoder kind and its file. If PATH is a folder, the file is the model in it."""
    kind, colon, path = spec.partition(":")
    if not colon or not path:
        raise TrellisError(f"The representation {spec!r} has no path; write it as KIND:PATH.")
    choose(ENCODERS, kind, "The representation")
    return kind, find_model(path) if kind in OF_MODELS else Path(path)
