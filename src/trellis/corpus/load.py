"""Load a corpus from the cache, or encode it if it is not there."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trellis.config import DataConfig, RunConfig
from trellis.corpus.cache import cache_folder, is_intact, new_entry
from trellis.corpus.encode import encode_corpus, encode_sentences
from trellis.corpus.read import find_reader, reader_of_suffix, suffix_of
from trellis.corpus.recipe import Recipe, make_recipe
from trellis.corpus.sources import SPLITS, Source, find_source
from trellis.corpus.splits import Split, open_split
from trellis.corpus.tagged import Tagged
from trellis.corpus.tokenize import TOKENIZERS, UNK
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError
from trellis.progress import progress
from trellis.storage import write_text

SCHEMA = 2  # increment when the encoding of a text or the layout of an entry changes
META, VOCAB = "meta.json", "vocab.json"
BLOCK = 1 << 20
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A vocabulary and the splits encoded with it; `corpus["train"]` is `corpus.splits["train"]`.

    Parameters
    ----------
    vocab
        The words, and their ids.
    splits
        The ids of the text, for "train", "valid" and "test".
    description
        The name and the sizes of the corpus, for reports.
    recipe
        How the text was read.

    Examples
    --------
    >>> corpus = trellis.read_corpus(["a b", "b c a"] * 20)
    >>> corpus.vocab.decode(corpus["valid"].tokens)[-1]
    '<eos>'
    """

    vocab: Vocabulary
    splits: dict[str, Split]
    description: str
    recipe: Recipe = field(default_factory=Recipe)

    @property
    def order(self) -> str:
        """The order of batches that the reader of this corpus sets; empty if the model's family determines the
        order."""
        return find_reader(self.recipe.reader).order

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise TrellisError(f"The corpus has no {name} split; it has {', '.join(self.splits)}.")
        return self.splits[name]


def load_corpus(
    config: DataConfig,
    cache: Path | None = None,
    vocab: Vocabulary | None = None,
    reader: str = "text",
    report: bool = True,
) -> Corpus:
    """Load the corpus described by `config`. It is encoded once and then memory-mapped from the cache.

    Files whose suffix has no reader are read by `reader`, unless `config` names another. The cache key covers the
    contents of the files, the recipe, the format, and the vocabulary, if one is passed. Without `report`, nothing is
    logged about unknown words.
    """
    with find_source(config.source, cache) as source:
        recipe = make_recipe(config, source.suffix, reader)
        if config.reader is None:
            check_one_format(source, recipe)
        target = cache_folder(cache) / "corpora" / f"{source.name}-{_fingerprint(source, recipe, vocab)}"
        if not is_intact(target):
            with new_entry(target) as folder:
                _build(source, recipe, vocab, folder)
        corpus = _open(target, source.description, recipe)
        if report and vocab is None:
            report_unknown(corpus)
        return corpus


def report_unknown(corpus: Corpus) -> None:
    """Log how many training words are read as <unk>, if this is the default. If the training text has no <unk>, warn
    about unknown words in held-out text."""
    vocab = corpus.vocab
    seen = vocab.counts[vocab.unk] if vocab.unk is not None else 0
    if seen and corpus.recipe.min_count is None and set(corpus["train"].unknown_words()) - {UNK}:
        share = seen / sum(vocab.counts)
        logger.info(f"{seen:,} words seen once ({share:.1%} of the training tokens) are <unk>; see data.min_count")
    warn_untrained(vocab, {name: split for name, split in corpus.splits.items() if name != "train"})


def warn_untrained(vocab: Vocabulary, splits: Mapping[str, Split]) -> None:
    """Warn about unknown words if the training text contains no <unk>."""
    if vocab.unk is None or vocab.counts[vocab.unk] or not any(vocab.counts):
        return
    unknown = {name: int((split.tokens == vocab.unk).sum()) for name, split in splits.items()}
    if found := {name: count for name, count in unknown.items() if count}:
        shares = " and ".join(f"{count / splits[name].tokens.size:.1%} of {name}" for name, count in found.items())
        logger.warning(
            f"{sum(found.values()):,} tokens ({shares}) are unknown words, but the training text has no <unk>: their "
            "probability is arbitrary; train with data.min_count = 2."
        )


def check_one_format(source: Source, recipe: Recipe) -> None:
    """Raise if files of a folder have the suffixes of different readers."""
    for path in (path for paths in source.files.values() for path in paths):
        if (other := reader_of_suffix(suffix_of(path), recipe.reader)) != recipe.reader:
            advice = "keep one format in the folder, or set data.reader"
            raise TrellisError(
                f"{path} has the suffix of the reader {other}, other files that of {recipe.reader}; {advice}."
            )


def corpus_of(data: Any, config: DataConfig, known: Vocabulary | None = None) -> Corpus:
    """Build a corpus from sentences. A sentence is a string, or a sequence of tokens, which may be integers. A Corpus
    is returned unchanged.

    With a vocabulary `known`, the sentences are preprocessed in the same way as the training text of that
    vocabulary."""
    if isinstance(data, Corpus):
        if known is not None and data.vocab.words != known.words:
            raise TrellisError("The corpus has a different vocabulary from the model; pass its sentences instead.")
        return data
    check_sentences(data)
    recipe = make_recipe(replace(config, source=""), "")
    if known is not None:
        recipe = replace(recipe, tokenizer=known.tokenizer, lower=known.lower, digits=known.digits)
    tokenizer = TOKENIZERS[recipe.tokenizer]
    texts = [(text, tokens_of(text, recipe.tokenizer)) for text in data]
    if not any(tokens for _, tokens in texts):
        raise TrellisError("The given sentences contain no words.")
    kept = [(text, tokens) for text, tokens in texts if tokens or tokenizer.exact]
    sizes = [1 + len(text if isinstance(text, str) else tokenizer.join(tokens)) for text, tokens in kept]
    vocab, splits = encode_sentences([tokens for _, tokens in kept], sizes, recipe, known)
    corpus = Corpus(vocab, splits, describe(f"{len(texts):,} sentences", vocab, splits), recipe)
    if known is None:
        report_unknown(corpus)
    return corpus


def check_sentences(data: Any) -> None:
    """Raise if a text from Python is neither a list of sentences nor a corpus."""
    refuse_frame(data)
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable | Corpus | Tagged):
        kind = type(data).__name__
        raise TrellisError(f"A {kind} is not a text: pass a list of sentences (strings or lists of tokens).")


def refuse_frame(data: Any) -> None:
    """Raise if the data is a DataFrame; the column with the sentences must be passed instead."""
    if hasattr(data, "columns"):
        names = ", ".join(map(repr, list(data.columns)[:5]))
        raise TrellisError(f"A DataFrame is not a text: pass the column with the sentences; this one has {names}.")


def tokens_of(sentence: Any, tokenizer: str) -> list[str]:
    """Tokenise a string; a sequence is taken as already tokenised."""
    if isinstance(sentence, str):
        return TOKENIZERS[tokenizer].split(sentence.replace("\n", " "))
    tokens = sentence.tolist() if hasattr(sentence, "tolist") else sentence
    if not isinstance(tokens, Iterable) or isinstance(tokens, bytes):
        raise TrellisError(f"The sentence {sentence!r} is neither a string nor a sequence of tokens.")
    wrong = next((token for token in tokens if not isinstance(token, str | int)), None)
    if wrong is not None:
        raise TrellisError(f"The token {wrong!r} is neither a string nor an integer.")
    return [str(token) for token in tokens]


def describe(origin: str, vocab: Vocabulary, splits: Mapping[str, Split]) -> str:
    """A one-line summary of a corpus."""
    sizes = " / ".join(f"{split.tokens.size:,}" for split in splits.values())
    return f"{origin}: {sizes} tokens ({' / '.join(splits)}), {len(vocab):,} words"


def read(run: RunConfig, data: Any = None) -> Corpus:
    """Load the corpus of a run, or build one from Python data; raises early if a split is missing."""
    corpus = load_corpus(run.data) if data is None else corpus_of(data, run.data)
    for name in SPLITS if run.eval.test else SPLITS[:-1]:
        corpus[name]
    return corpus


def _build(source: Source, recipe: Recipe, known: Vocabulary | None, folder: Path) -> None:
    workshop = folder.parent / "workshop"
    workshop.mkdir()
    size = sum(path.stat().st_size for paths in source.files.values() for path in paths)
    with progress(f"encode {source.name}", size, "bytes") as bar:
        vocab = encode_corpus(source, recipe, folder, workshop, bar.advance, known)
    write_text(folder / VOCAB, vocab.to_json())
    meta = {
        "schema": SCHEMA,
        "splits": [name for name in SPLITS if (folder / f"{name}.tokens").exists()],
        "recipe": asdict(recipe),
    }
    write_text(folder / META, json.dumps(meta, indent=1))


def _open(folder: Path, origin: str, recipe: Recipe) -> Corpus:
    names = json.loads((folder / META).read_text(encoding="utf-8"))["splits"]
    splits = {name: open_split(folder / name) for name in names}
    vocab = Vocabulary.from_json((folder / VOCAB).read_text(encoding="utf-8"))
    return Corpus(vocab, splits, describe(origin, vocab, splits), recipe)


def _fingerprint(source: Source, recipe: Recipe, vocab: Vocabulary | None) -> str:
    """A hash of the contents of all files, by split, and of everything that determines their encoding."""
    digest = hashlib.sha256(json.dumps([SCHEMA, asdict(recipe)]).encode())
    digest.update((vocab.to_json() if vocab else "").encode())
    digest.update(find_reader(recipe.reader).version.encode())
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
