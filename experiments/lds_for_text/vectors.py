"""Token vectors learned from plain text, evaluated by likelihood and by how well they predict parts of speech."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.lds_for_text.config import VectorRun
from experiments.lds_for_text.dense_system import DenseSystem
from experiments.lds_for_text.probe import fit_probe, normal_form
from experiments.paper import Job, Outcome
from experiments.results import Figures, source_hash
from experiments.universal import universal
from experiments.word2vec import cbow
from trellis.config import DataConfig
from trellis.corpus import Split, Vocabulary, load_corpus
from trellis.corpus.tagged import TAGGED, Tagged, load_tagged
from trellis.corpus.tokenize import EOS, UNK
from trellis.families.lds.learning import begin_lds, count_text, improve, lagged_covariances
from trellis.families.lds.model import LDS
from trellis.options import choose
from trellis.storage import load_tensors, read_metadata, save_tensors
from trellis.tasks.bootstrap import binomial_p

Sentences = Sequence[Sequence[str]]
Embed = Callable[[Sentences], Tensor]  # [tokens, h]
SPLITS = "train", "valid", "test"
PASSES = 10  # of word2vec


def flat(sentences: Sentences) -> list[str]:
    return list(chain.from_iterable(sentences))


@dataclass(frozen=True)
class Text:
    """The text that vectors are learned from, and the tagged text for evaluation; numbers are NUM in both."""

    sentences: list[list[str]]
    tagged: dict[str, Tagged]
    min_count: int

    @cached_property
    def vocab(self) -> Vocabulary:
        counts = Counter(chain.from_iterable([*sentence, EOS] for sentence in self.sentences))
        return Vocabulary.choose(counts, self.min_count)

    def split(self, sentences: Sentences) -> Split:
        lines = [[*map(normal_form, sentence), EOS] for sentence in sentences]
        ends = np.cumsum([0, *map(len, lines)])
        return Split(self.vocab.encode(flat(lines)).astype(np.int32), ends, ends[[0, -1]])


def read_text(config: VectorRun) -> Text:
    tagged = {split: load_tagged(config.tags, split) for split in SPLITS}
    if config.universal:
        tagged = {split: data.map_tags(universal) for split, data in tagged.items()}
    untagged = chain.from_iterable(map(untagged_sentences, config.text.split()))
    sentences = [[normal_form(word) for word in piece] for piece in [*untagged, *tagged["train"].words] if piece]
    return Text(sentences, tagged, config.min_count)


def untagged_sentences(name: str) -> Sentences:
    """The training sentences of a text, or of a tagged text without its tags."""
    if name in TAGGED:
        return load_tagged(name, "train").words
    corpus = load_corpus(DataConfig(name))
    train = corpus["train"]
    words = np.array(corpus.vocab.words, dtype=object)[train.tokens]
    return [words[begin : end - 1].tolist() for begin, end in pairwise(train.sentences)]


def lds(config: VectorRun, text: Text) -> tuple[Embed, Figures]:
    """Smoothed vectors, and the gain in nats per token over a memoryless Gaussian."""
    model, splits = config.model, {name: text.split(text.tagged[name].words) for name in ("valid", "test")}
    splits["train"] = text.split(text.sentences)
    moments = count_text(text.vocab, splits["train"], model.blocks, model.horizon, model.max_words)
    covariances = lagged_covariances(moments, model)
    start = begin_lds(covariances, model, config.seed)
    iterations = 0 if config.train.learner == "subspace" else config.train.epochs
    fits = improve(text.vocab, covariances, start, model)
    *_, (nats, found) = islice(fits, iterations + 1)
    gains: Figures = {"gain_train": nats - found.static_nats_per_token(splits.pop("train"))}
    gains |= {f"gain_{name}": nats_more(found, split) for name, split in splits.items()}

    def embed(sentences: Sentences) -> Tensor:
        words = [list(map(normal_form, sentence)) for sentence in sentences]
        return torch.from_numpy(np.concatenate(found.embed(words, complete=False)))

    return embed, gains


def nats_more(model: LDS, split: Split) -> float:
    return model.nats_per_token(split) - model.static_nats_per_token(split)


def word2vec_table(config: VectorRun, text: Text) -> Tensor:
    """CBOW vectors [V, h], zero for words without one."""
    sentences = [[word if word in text.vocab.index else UNK for word in sentence] for sentence in text.sentences]
    found = cbow(sentences, config.model.dim, min_count=1, epochs=PASSES, seed=config.seed)
    table = np.zeros((len(text.vocab), config.model.dim), np.float32)
    for word, vector in zip(found.index_to_key, found.vectors, strict=True):
        table[text.vocab.index[word]] = vector
    return torch.from_numpy(table)


def word2vec(config: VectorRun, text: Text) -> tuple[Embed, Figures]:
    """Word vectors that do not depend on context."""
    table = word2vec_table(config, text)
    return lambda sentences: table[text.vocab.encode([normal_form(word) for word in flat(sentences)])], {}


def lds_of_word2vec(config: VectorRun, text: Text) -> tuple[Embed, Figures]:
    """Smoothed vectors of a system over word2vec vectors, whitened and of unit length."""

    def ids(sentences: Sentences) -> list[Tensor]:
        return [torch.from_numpy(text.vocab.encode([normal_form(word) for word in words])) for words in sentences]

    tokens = torch.from_numpy(text.split(text.sentences).tokens.astype(np.int64))
    system = DenseSystem.fit(word2vec_table(config, text), tokens, config.train.epochs)
    spread = torch.cat(system.read(ids(text.tagged["train"].words))[0]).T.cov()
    values, turn = torch.linalg.eigh(spread)
    whiten = turn / values.clamp(min=1e-9 * float(values.max())).sqrt()

    def embed(sentences: Sentences) -> Tensor:
        return torch.nn.functional.normalize(torch.cat(system.read(ids(sentences))[0]) @ whiten, dim=-1).float()

    return embed, {f"gain_{name}": system.read(ids(part.words))[1] for name, part in text.tagged.items()}


VECTORS: dict[str, Callable[[VectorRun, Text], tuple[Embed, Figures]]] = {
    "lds": lds,
    "word2vec": word2vec,
    "lds-of-word2vec": lds_of_word2vec,
}


class Learned(NamedTuple):
    """Vectors [tokens, h] of the tagged text by split, and how they were learned."""

    vectors: dict[str, Tensor]
    figures: Figures
    seconds: float


def learned(config: VectorRun, text: Text, folder: Path) -> Learned:
    """Learn vectors, or read those of an earlier run that differs in its classifiers alone."""
    path = folder / f"vectors-{digest(config)}.safetensors"
    if not path.exists():
        begun = time.monotonic()
        embed, figures = choose(VECTORS, config.vectors, "vectors")(config, text)
        vectors = {name: embed(part.words) for name, part in text.tagged.items()}
        about = {"figures": json.dumps(figures), "seconds": str(time.monotonic() - begun)}
        save_tensors(path, vectors, about)
    about = read_metadata(path)
    return Learned(load_tensors(path), json.loads(about["figures"]), float(about["seconds"]))


def digest(config: VectorRun) -> str:
    """A hash of the options that vectors depend on, and of the library's source."""
    options = replace(config, universal=False, window=0, hidden=0, beside="")
    return hashlib.sha256(f"{options} {source_hash()}".encode()).hexdigest()[:16]


def right_tags(vectors: dict[str, Tensor], text: Text, config: VectorRun, window: int = 0) -> dict[str, np.ndarray]:
    """Which tokens of the validation and test sets the probe tags correctly."""
    given = {
        name: (beside(vectors[name], part.words, window), flat(part.words), flat(part.tags))
        for name, part in text.tagged.items()
    }
    probe = fit_probe(*given["train"], hidden=config.hidden, seed=config.seed)
    return {name: probe.right(*given[name]) for name in ("valid", "test")}


def beside(vectors: Tensor, sentences: Sentences, window: int) -> Tensor:
    """The vectors [N, h] of tokens next to those of `window` tokens on either side, zero outside the sentence:
    [N, (2 window + 1) h]."""
    edge = vectors.new_zeros(window, vectors.shape[1])
    parts = [torch.cat([edge, part, edge]) for part in vectors.split([len(words) for words in sentences])]
    return torch.cat([part.unfold(0, 2 * window + 1, 1).transpose(1, 2).flatten(1) for part in parts])


class Measured(NamedTuple):
    """Which tokens are tagged correctly by split, the figures, and the seconds that learning the vectors took."""

    right: dict[str, np.ndarray]
    figures: Figures
    seconds: float


def measure(config: VectorRun, text: Text, folder: Path) -> Measured:
    vectors, figures, seconds = learned(config, text, folder)
    right = right_tags(vectors, text, config)
    if config.window:
        wider = right_tags(vectors, text, config, config.window)
        figures |= {f"window_{name}": float(tokens.mean()) for name, tokens in wider.items()}
    return Measured(right, figures | {f"pos_{name}": float(tokens.mean()) for name, tokens in right.items()}, seconds)


def run_vectors(job: Job) -> Outcome:
    """Learn and probe vectors; on the test set, also compute the margin over other runs and its p-value."""
    config: VectorRun = job.config
    text = read_text(config)
    right, figures, seconds = measure(config, text, job.folder)
    for name in config.beside.split():
        other = job.config_of(name)
        theirs = measure(other, read_text(other), job.folder).right
        figures[f"margin_{name}"] = float(right["test"].mean() - theirs["test"].mean())
        figures[f"p_{name}"] = binomial_p(right["test"], theirs["test"])
    return Outcome(f"{config.text} and {config.tags}, {len(text.vocab):,} words", figures, {"seconds": seconds})
