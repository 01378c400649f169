"""`python -m experiments.tagging.domain_study`: why LDS vectors harm a tagger of newswire that is applied to GENIA.

How well the vector of a single token tells which of the two texts it is from, and how similar the mean vectors of nouns
and verbs are in both. Uses the representations that runs of `genia-lds-50` and `genia-word2vec-50` have learned in
--runs, or learns them; writes domains.json."""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
from sklearn.linear_model import LogisticRegression

from experiments.tagging.representations import encoder_spec
from experiments.tagging.taggers import labelled
from trellis.corpus.tagged import Tagged
from trellis.families.crf.encoders import ENCODERS, split_spec
from trellis.storage import write_text

FOUND = Path(__file__).parent / "domains.json"
SENTENCES = 600  # of each text
KINDS = "lds-50", "lds-50-centred", "word2vec-50"
TAGS = "NOUN", "VERB"


def separation(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The accuracy, in percent, of a linear classifier of two sets of vectors, on the half it was not fitted to."""
    vectors = np.concatenate([ours, theirs])
    domain = np.repeat([0, 1], [len(ours), len(theirs)])
    found = LogisticRegression(max_iter=1000).fit(vectors[::2], domain[::2])
    return 100.0 * float(found.score(vectors[1::2], domain[1::2]))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def study(sentences: list[list[np.ndarray]], tags: list[np.ndarray]) -> dict[str, float]:
    """Figures of the vectors of two texts."""
    ours, theirs = (np.concatenate(text) for text in sentences)
    means = {tag: [rows[own == tag].mean(0) for rows, own in zip((ours, theirs), tags, strict=True)] for tag in TAGS}
    return {"separation": separation(ours, theirs)} | {f"cosine_{tag}": cosine(*pair) for tag, pair in means.items()}


def some(data: Tagged) -> Tagged:
    """Sentences from the whole text."""
    every = max(1, len(data.words) // SENTENCES)
    return Tagged(data.words[::every], data.tags[::every])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    folder = parser.parse_args().runs / "tagging"
    texts = [some(labelled("newswire", "train", "universal")), some(labelled("genia", "valid", "universal"))]
    tags = [np.array(list(chain.from_iterable(text.tags))) for text in texts]
    found = {}
    for name in KINDS:
        kind, file = split_spec(encoder_spec(name, "bio", folder, "cpu"))
        encoder = ENCODERS[kind](file)
        found[name] = study([cast(list[np.ndarray], encoder.encode(text.words)) for text in texts], tags)
        print(name, found[name])
    write_text(FOUND, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
