"""The high-level API: train, load, evaluate, compare, read_corpus."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from trellis.config import GIVEN, DataConfig, RunConfig, load_config, with_settings
from trellis.corpus import Corpus, load_corpus
from trellis.corpus.load import check_sentences, corpus_of, warn_untrained
from trellis.corpus.tagged import TAGGED, Tagged, format_of, read_splits
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel, PersistedModel
from trellis.models.files import load
from trellis.models.tagger import Tagger
from trellis.options import build, choose
from trellis.storage import as_path
from trellis.tasks.compare import Text, compare, spelled_log_probs, spelling_of
from trellis.tasks.lm import Evaluation, check_source, data_of, evaluate as score_batches, reading_of, split_of
from trellis.tasks.tagging import TagScores, score_tags
from trellis.training import run as job
from trellis.training.callbacks import Callback

__all__ = ["compare", "evaluate", "load", "read_corpus", "train"]


def train(
    data: Any = "python-docs",
    run: str | PathLike[str] | None = None,
    *,
    family: str = "hmm",
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> job.Trained:
    """Train a model and evaluate it on held-out text.

    Parameters
    ----------
    data : str, path, list, Corpus or RunConfig
        The name of a corpus, a file or folder, a `Corpus`, or a list of sentences (strings or lists of tokens). For
        taggers, the name of a tagged data set, a file, or sentences of (word, tag) pairs. A TOML file or a `RunConfig`
        contains all settings; pass only `run`, `resume` and `callbacks` with it.
    family
        The model family; `trellis config FAMILY` prints its options.
    run
        A folder for the model, its checkpoints, metrics and results. Without it, nothing is written.
    resume
        Resume the run in that folder.
    seed
        The random seed.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.
    callbacks
        Objects that are called during training; see `Callback`.
    settings : str, int, float, bool or dict
        Options by name (`states=512, epochs=3`), or a dict of options for a section (`batches={"window": 32}`).

    Examples
    --------
    >>> import trellis
    >>> sentences = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 10
    >>> trained = trellis.train(sentences, states=4, epochs=2, tokenizer="whitespace")
    >>> trained.model.num_states
    4
    """
    data = list(data) if isinstance(data, Iterator) else data
    config, given = configure(data, family, {"seed": seed, "device": device, **settings})
    return job.train(config, None if run is None else as_path(run), resume, given, callbacks)


def configure(data: Any, family: str, settings: dict[str, Any]) -> tuple[RunConfig, Any]:
    """The RunConfig built from the arguments of `train`, and the text if it was passed from Python."""
    path = str(data) if isinstance(data, str | PathLike) else None
    if isinstance(data, RunConfig) or (path is not None and path.endswith(".toml")):
        if (family, settings) != ("hmm", {"seed": 0, "device": "auto"}):
            raise TrellisError("A RunConfig or a TOML file contains all options; change them there, not by arguments.")
        return data if isinstance(data, RunConfig) else load_config(str(path)), None
    check_sentences([] if path is not None else data)
    settings = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    config, source = with_settings(family, settings), path or f"{GIVEN} {fingerprint(data)}>"
    return replace(config, data=replace(config.data, source=source)), data if path is None else None


def fingerprint(data: Any) -> str:
    """A hash of a text passed from Python, which is checked when a run is resumed."""
    digest = hashlib.sha256()
    texts = {Corpus: lambda: [split.tokens for split in data.splits.values()], Tagged: lambda: [data.words, data.tags]}
    for part in texts.get(type(data), lambda: data)():
        digest.update(repr(part.tolist() if isinstance(part, np.ndarray) else part).encode(errors="surrogatepass"))
    return digest.hexdigest()[:12]


def read_corpus(data: Any = "python-docs", **settings: Any) -> Corpus:
    """Encode a text as integers, with its vocabulary and splits.

    Parameters
    ----------
    data : str, path or list
        The name of a corpus, a file or folder, or sentences: strings, or lists of tokens.
    settings : str, int, float or bool
        Options of the section [data], such as `tokenizer`, `lower` and `min_count`.

    Examples
    --------
    >>> import trellis
    >>> corpus = trellis.read_corpus(["a b", "b c", "c a"] * 10)
    >>> len(corpus.vocab), corpus["train"].tokens.size
    (5, 78)
    """
    config = build(DataConfig, settings, "data.")
    if isinstance(data, str | PathLike):
        return load_corpus(replace(config, source=str(data)))
    return corpus_of(data, config)


def evaluate(
    model: PersistedModel | str | PathLike[str],
    data: Any = None,
    split: str | None = None,
    device: str = "cpu",
    reader: str | None = None,
    open_vocabulary: bool = False,
) -> Evaluation | TagScores:
    """The log-likelihood and perplexity of a text under a language model, or the accuracy of a tagger.

    Parameters
    ----------
    model
        A model, a model file or a run folder.
    data : str, path, list or Corpus
        The name of a corpus, a file, a folder, a list of sentences, or a `Corpus`. For a tagger, the name of a tagged
        data set, a file, or sentences of (word, tag) pairs. The default is the test split of the training corpus. For
        safety, the training file recorded in a model is opened only if Trellis has used that file on this machine
        before.
    split
        The split of the corpus; by default the test split, or all of a text that has no splits.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.
    reader
        "text", "fasta", "csv" or "arrow" (for a tagger "conll", "conllu", "medpost" or "word_tag"). By default, the
        suffix of the file decides. A file whose suffix belongs to no reader is read like the training text.
    open_vocabulary
        Add `open_bits_per_character` to the result: bits per character if a character model spells out unknown words.

    Examples
    --------
    >>> import trellis
    >>> model = trellis.train(["a b", "b a"] * 20, family="bigram").model
    >>> round(trellis.evaluate(model, ["a b"]).perplexity, 1) > 1
    True
    """
    found = model if isinstance(model, PersistedModel) else load(as_path(model), device=device)
    if isinstance(found, Tagger):
        return evaluate_tags(found, data, split, reader)
    if not isinstance(found, LanguageModel):
        raise TrellisError(f"Models of the family {found.family} assign no probabilities to words: no perplexity.")
    text = split_of(found, data, split, reader)
    warn_untrained(found.vocab, {"the text": text})
    result = score_batches(found, reading_of(found)(text))
    if not open_vocabulary:
        return result
    return result._replace(spelling=float(spelled_log_probs(Text(found.vocab, text), spelling_of(found)).sum()))


def evaluate_tags(model: Tagger, data: Any, split: str | None, reader: str | None = None) -> TagScores:
    """Tagging accuracy on tagged text."""
    if data is None and "data" not in model.about:
        raise TrellisError("The tagger was trained on a text from Python: pass tagged text as `data`.")
    config, given = data_of(model), None if isinstance(data, str | PathLike) else data
    if isinstance(data, str | PathLike):
        own = None if str(data) in TAGGED else format_of(str(data)) or config.reader
        config = replace(config, source=str(data), reader=reader or own)
    elif data is None:
        check_source(config.source)
    if data is not None:
        config = replace(config, valid_fraction=0.0, test_fraction=0.0)
    splits = read_splits(config, given)
    text = choose(splits, split or ("test" if "test" in splits else "train"), "split")
    return score_tags(text, model.tag(text.words, text.pos), model.units, model.word_counts)
