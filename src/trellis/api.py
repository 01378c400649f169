"""The library in four functions: train, load, evaluate, read_corpus."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from trellis.config import DataConfig, RunConfig, with_settings
from trellis.corpus import Corpus, load_corpus
from trellis.corpus.load import corpus_of
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel, PersistedModel
from trellis.models.files import load
from trellis.options import build
from trellis.tasks.lm import ALL, READINGS, Evaluation, join, load_split
from trellis.tasks.lm import evaluate as score_batches
from trellis.training import run as job
from trellis.training.callbacks import Callback

__all__ = ["evaluate", "load", "read_corpus", "train"]


def train(
    data: Any = "python-docs",
    *,
    family: str = "hmm",
    run: str | PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> job.Trained:
    """Train a model, and measure it on text that was held out.

    Parameters
    ----------
    data
        The name of a corpus, a file or folder, a list of sentences (strings, or lists of tokens), a `Corpus`, or a
        `RunConfig`, which decides everything else but `run` and `callbacks`. Taggers take the name of a tagged data
        set, a file, or sentences of (word, tag) pairs.
    family
        The family of models; `trellis config FAMILY` prints its options.
    run
        A folder for the model, its checkpoints, metrics and results; without one nothing is written.
    resume
        Continue the training in that folder.
    settings
        Options by name (`states=512, epochs=3`), or tables of them (`batches={"window": 32}`).

    Examples
    --------
    >>> import trellis
    >>> sentences = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 10
    >>> trained = trellis.train(sentences, states=4, epochs=2, tokenizer="whitespace")
    >>> trained.model.num_states
    4
    """
    config, given = configure(data, family, {"seed": seed, "device": device, **settings})
    return job.train(config, None if run is None else Path(run), resume, given, callbacks)


def configure(data: Any, family: str, settings: dict[str, Any]) -> tuple[RunConfig, Any]:
    """The run that `train` is asked for, and its text where that came from Python."""
    if isinstance(data, RunConfig):
        return data, None
    config = with_settings(family, settings)
    if isinstance(data, str | PathLike):
        return replace(config, data=replace(config.data, source=str(data))), None
    return config, data


def read_corpus(data: Any = "python-docs", **settings: Any) -> Corpus:
    """A text as integers: the name of a corpus, a file or folder, or a list of sentences (strings, or lists of tokens).

    `settings` are the options of [data], such as tokenizer, lower and min_count.

    >>> import trellis
    >>> corpus = trellis.read_corpus(["a b", "b c", "c a"] * 10)
    >>> len(corpus.vocab), corpus["train"].tokens.size
    (5, 84)
    """
    config = build(DataConfig, settings, "data.")
    if isinstance(data, str | PathLike):
        return load_corpus(replace(config, source=str(data)))
    return corpus_of(data, config)


def evaluate(
    model: PersistedModel | str | PathLike[str], data: Any = None, split: str | None = None, device: str = "cpu"
) -> Evaluation:
    """The log-likelihood and perplexity of a text under a language model; by default of its corpus's test split.

    `data` is the name of a corpus, a file, a folder, a list of sentences, or a `Corpus`.

    >>> import trellis
    >>> model = trellis.train(["a b", "b a"] * 20, family="bigram").model
    >>> round(trellis.evaluate(model, ["a b"]).perplexity, 1) > 1
    True
    """
    found = model if isinstance(model, PersistedModel) else load(Path(model), device=device)
    if not isinstance(found, LanguageModel):
        raise TrellisError(f"A model of the family {found.family} gives words no probabilities: it has no perplexity.")
    if data is None or isinstance(data, str | PathLike):
        text = load_split(found, None if data is None else str(data), split)
    else:
        corpus = corpus_of(data, DataConfig(valid_fraction=0.0, test_fraction=0.0), found.vocab)
        text = join(list(corpus.splits.values())) if split in (None, ALL) else corpus[str(split)]
    return score_batches(found, READINGS[found.about.get("order", "sentences")](text))
