"""Unlabelled texts, and the word representations learned from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from experiments.word2vec import cbow
from trellis.config import BatchConfig, DataConfig, RunConfig, TrainConfig
from trellis.corpus import load_corpus
from trellis.corpus.brown import brown_clusters
from trellis.corpus.read import read_lines
from trellis.corpus.sources import data_folder
from trellis.corpus.tagged import load_tagged
from trellis.errors import TrellisError
from trellis.families.factorial.config import FHMMConfig, FHMMTrainConfig
from trellis.families.hmm.config import HMMConfig
from trellis.families.lds.config import LDSConfig
from trellis.families.neural.config import FeedForwardConfig
from trellis.models.files import FILE
from trellis.options import choose, suggestion
from trellis.storage import atomic_write
from trellis.training.run import train

JOINT = re.compile(r" @(.)@ ")  # WikiText's marks for a hyphen, a comma or a point inside a word
ENDS = ".", "?", "!"

# data sets and splits; no test data, except for the words of the test set in "names"
TEXTS = {
    "bio": (("conll2000", "train"), ("treebank_sample", "train"), ("genia", "train"), ("genia", "valid"),
            ("medpost", "train"), ("medpost", "valid")),
    "general": (("ud_ewt", "train"), ("ud_ewt", "valid"), ("conll2000", "train"), ("conll2003", "train"),
                ("conll2003", "valid")),
    "names": (("conll2003", "train"), ("conll2003", "valid"), ("conll2003", "test")),
}  # fmt: skip
WITH_WIKITEXT = "general", "names"


def write_text(name: str, folder: Path) -> Path:
    """Write the unlabelled text of that name to a file, one sentence per line."""
    if name not in TEXTS:
        raise TrellisError(f"There is no unlabelled text {name!r}{suggestion(name, TEXTS)}")
    path = folder / f"{name}.txt"
    if not path.exists():
        with atomic_write(path) as file:
            for line in (*labelled(name), *(wikitext() if name in WITH_WIKITEXT else ())):
                file.write(f"{line}\n".encode())
    return path


def labelled(name: str) -> Iterator[str]:
    return (" ".join(words) for part in TEXTS[name] for words in load_tagged(*part).words)


def wikitext() -> Iterator[str]:
    """The sentences of WikiText's training set, without headings."""
    for line in read_lines(data_folder("wikitext-2") / "train.txt"):
        words = JOINT.sub(r" \1 ", line).split()
        if words and words[0] != "=":
            ends = [i for i, (word, after) in enumerate(pairwise(words), 1) if word in ENDS and begins(after)]
            yield from (" ".join(words[first:last]) for first, last in pairwise([0, *ends, len(words)]))


def begins(word: str) -> bool:
    """Whether a sentence can begin with this word."""
    return word[0].isupper() or word == '"'


def learn_brown(classes: int, text: Path, folder: Path, device: str) -> Path:
    """Words seen fewer than three times are <unk>, so that a tagger can learn about unknown words."""
    path = folder / "paths.txt"
    if not path.exists():
        config = DataConfig(source=str(text), digits=True, min_count=3, valid_fraction=0.0, test_fraction=0.0)
        corpus = load_corpus(config)
        words = corpus.vocab.words
        brown_clusters(corpus["train"].tokens, classes, vocab_size=len(words)).save(path, words)
    return path


def learn_model(config: RunConfig, text: Path, folder: Path, device: str) -> Path:
    if not (folder / FILE).exists():
        source = DataConfig(source=str(text), digits=True, min_count=2, valid_fraction=0.02, test_fraction=0.01)
        train(RunConfig(source, config.model, config.batches, config.train, config.seed, device), folder, resume=True)
    return folder


def learn_word2vec(dim: int, text: Path, folder: Path, device: str) -> Path:
    """Write vectors in the text format of word2vec."""
    path = folder / "vectors.txt"
    if not path.exists():
        sentences = [re.sub(r"\d+", "N", line).split() for line in read_lines(text)]
        found = cbow(sentences, dim, min_count=3, epochs=5, seed=0)
        with atomic_write(path) as file:
            file.write(f"{len(found)} {dim}\n".encode())
            file.writelines(lines(zip(found.index_to_key, found.vectors, strict=True)))
    return path


def lines(rows: Iterable[tuple[str, Iterable[float]]]) -> Iterator[bytes]:
    return (f"{word} {' '.join(f'{value:.5g}' for value in vector)}\n".encode() for word, vector in rows)


SENTENCES = BatchConfig(order="sentences")
HMM = RunConfig(model=HMMConfig(states=80), batches=SENTENCES, train=TrainConfig(epochs=8))
LDS = RunConfig(model=LDSConfig(dim=50))
FEEDFORWARD = RunConfig(
    model=FeedForwardConfig(dim=50, hidden=100, window=10, tying="none"),
    batches=SENTENCES, train=TrainConfig(epochs=10, learner="gradient", lr=0.002, patience=2),
)  # fmt: skip


def fhmm(layers: int) -> RunConfig:
    return RunConfig(model=FHMMConfig(layers=layers, states=10), train=FHMMTrainConfig(epochs=5))


def fhmm_ptb(layers: int, states: int) -> RunConfig:
    """The settings of factorial-hmm/ptb-5-10: smaller batches and a faster decay of old counts than by default."""
    return RunConfig(
        model=FHMMConfig(layers=layers, states=states), batches=BatchConfig(order="sentences", tokens=2048),
        train=FHMMTrainConfig(epochs=5, em_power=0.6, pseudocount=0.01, sweeps=2),
    )  # fmt: skip


Learn = Callable[[Path, Path, str], Path]
LEARNED: dict[str, Learn] = {
    "brown-1000": partial(learn_brown, 1000),
    "word2vec-50": partial(learn_word2vec, 50),
    "hmm-80": partial(learn_model, HMM),
    "lds-50": partial(learn_model, LDS),
    "feedforward-50": partial(learn_model, FEEDFORWARD),
    **{f"fhmm-{layers}-10": partial(learn_model, fhmm(layers)) for layers in (1, 3, 5)},
    "fhmm-5-10-ptb": partial(learn_model, fhmm_ptb(5, 10)),
    "fhmm-8-4-ptb": partial(learn_model, fhmm_ptb(8, 4)),
    "fhmm-10-3-ptb": partial(learn_model, fhmm_ptb(10, 3)),
}
REPRESENTATIONS = {  # name -> encoder kind, and what is learned
    "brown-1000": ("brown", "brown-1000"),
    "word2vec-50": ("vectors", "word2vec-50"),
    "hmm-80": ("hmm", "hmm-80"),
    "hmm-80-posterior": ("hmm-posterior", "hmm-80"),
    "lds-50": ("lds", "lds-50"),
    "lds-50-centred": ("lds-centred", "lds-50"),
    "feedforward-50": ("feedforward", "feedforward-50"),
    **{f"fhmm-{layers}-10": ("fhmm", f"fhmm-{layers}-10") for layers in (1, 3, 5)},
    **{f"fhmm-{layers}-10-posterior": ("fhmm-posterior", f"fhmm-{layers}-10") for layers in (1, 3, 5)},
    **{f"fhmm-{name}-posterior": ("fhmm-posterior", f"fhmm-{name}") for name in ("5-10-ptb", "8-4-ptb", "10-3-ptb")},
}


def encoder_spec(name: str, text: str, folder: Path, device: str) -> str:
    """KIND:PATH of a representation, which is learned if it does not exist yet."""
    kind, learned = choose(REPRESENTATIONS, name, "representations")
    place = folder / f"{text}-{learned}"
    place.mkdir(parents=True, exist_ok=True)
    return f"{kind}:{LEARNED[learned](write_text(text, folder), place, device)}"
