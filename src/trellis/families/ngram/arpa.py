"""ARPA files, the exchange format of n-gram models: log10 probabilities and backoffs of every n-gram, as text.

<eos> is written as <s> where an n-gram begins with it and as </s> where one ends with it. A model whose contexts cross
the ends of sentences has it in the middle as well: there it stays <eos>, and <s> and </s> are words that never come.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path

from trellis.errors import TrellisError
from trellis.families.ngram.model import NGram
from trellis.storage import atomic_write

BEGIN, END, NEVER = "<s>", "</s>", -99.0
SUFFIXES = ".arpa", ".arpa.gz"
SEPARATORS = frozenset(" \t\n\r\v\f\0")
LN10 = math.log(10)


def is_arpa(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def write_arpa(model: NGram, path: Path) -> None:
    """Write the model, gzipped where the name ends in .gz."""
    for word in model.vocab.words:
        if word in ("", BEGIN, END) or SEPARATORS & set(word):
            raise TrellisError(f"An ARPA file cannot hold the word {word!r}; train on a text without it.")
    with atomic_write(path) as plain, gzip.open(plain, "wb") if path.suffix == ".gz" else plain as file:
        file.write(b"\\data\\\n")
        for k, size in enumerate(model.trie.sizes, 1):
            file.write(b"ngram %d=%d\n" % (k, size + (k == 1) * (1 + model.crossing)))
        for k, lines in enumerate(sections(model), 1):
            file.write(b"\n\\%d-grams:\n" % k)
            file.writelines(line.encode() for line in lines)
        file.write(b"\n\\end\\\n")


def sections(model: NGram) -> Iterator[Iterable[str]]:
    """The lines of each order."""
    trie, eos, names = model.trie, model.vocab.eos, list(model.vocab.words)
    log_probs, backoffs = (model.log_probs / LN10).tolist(), (model.backoffs / LN10).tolist()
    backoffs += [0.0] * trie.sizes[-1]
    texts, never = names.copy(), {BEGIN: 0.0, END: 0.0}
    if not model.crossing:
        names[eos], texts[eos], never = END, BEGIN, {BEGIN: backoffs[eos]}
        backoffs[eos] = 0.0
    for k, (begin, end) in enumerate(pairwise(trie.bounds), 1):
        line = "{:.9g}\t{}\n" if k == model.order else "{:.9g}\t{}\t{:.9g}\n"
        if k == 1:
            extra = (line.format(NEVER, name, backoff) for name, backoff in never.items())
            yield chain(map(line.format, log_probs[:end], names, backoffs[:end]), extra)
            continue
        parents, words = trie.level(k)
        places = (parents - trie.bounds[k - 2]).tolist()
        texts = [f"{texts[place]} {names[word]}" for place, word in zip(places, words.tolist(), strict=True)]
        yield map(line.format, log_probs[begin:end], texts, backoffs[begin:end])
