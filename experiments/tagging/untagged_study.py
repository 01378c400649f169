"""`python -m experiments.tagging.untagged_study`: what untagged text adds to an HMM tagger, by amount of tagged text.

The tags of every n-th sentence of UD-EWT are used, beginning with several sentences: each beginning is another sample
of tagged text. A tagger of the tagged sentences alone is compared with one that also reads all other sentences, without
tags and with the same total weight. Writes untagged.json; samples that it already has are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import binomtest

from trellis.config import RunConfig, load_config, run_config
from trellis.corpus.tagged import Tagged
from trellis.families.hmm_tagger.fit import Texts, fit, read
from trellis.families.hmm_tagger.model import HMMTagger
from trellis.options import to_tables
from trellis.storage import write_text
from trellis.tasks.tagging import compare_tags, score_tags, word_counts
from trellis.training.fit import Job

FOLDER = Path(__file__).parent
FOUND = FOLDER / "untagged.json"
SAMPLES = {10: 1, 100: 3}  # samples of tagged text by n; the one with n = 10 is that of the run pos-hmm-ewt-tenth-rest
Tags = list[list[str]]


def sample(texts: Texts, every: int, first: int) -> Texts:
    """Every n-th training sentence from `first` on with its tags, and the others without."""
    whole = texts["train"]
    tagged = Tagged(whole.words[first::every], whole.tags[first::every])
    others = [words for number, words in enumerate(whole.words) if number % every != first]
    return replace(texts, splits=texts.splits | {"train": tagged}, untagged=others, weight=every)


def tags(config: RunConfig, texts: Texts) -> Tags:
    """The tags of the test text by a new tagger."""
    tagger = fit(Job(config, texts, "cpu")).model
    assert isinstance(tagger, HMMTagger)
    return tagger.tag(texts["test"].words)


def compare(config: RunConfig, texts: Texts) -> dict[str, Any]:
    """Accuracies on the test text with and without untagged text, and the tokens that only one tagger gets right."""
    test, known = texts["test"], word_counts(texts["train"])
    alone, both = (tags(config, chosen) for chosen in (replace(texts, untagged=[], weight=1), texts))
    apart, apart_oov = compare_tags(test, alone, both), compare_tags(*unknown(known, test, alone, both))
    scores = {name: score_tags(test, found, known=known) for name, found in (("alone", alone), ("both", both))}
    return {
        **{name: 100.0 * score.accuracy for name, score in scores.items()},
        **{f"{name}_oov": 100.0 * score.buckets["oov"].f1 for name, score in scores.items()},
        "only_alone": apart.only_first,
        "only_both": apart.only_second,
        "only_alone_oov": apart_oov.only_first,
        "only_both_oov": apart_oov.only_second,
    }


def unknown(known: Mapping[str, int], data: Tagged, *found: Tags) -> tuple[Tagged, Tags, Tags]:
    """The words that are not known, with their tags and those of two taggers, as one sentence."""
    new = [word not in known for words in data.words for word in words]
    rows = (data.words, data.tags, *found)
    words, tags, first, second = ([list(compress(chain.from_iterable(row), new))] for row in rows)
    return Tagged(words, tags), first, second


def pooled(samples: list[dict[str, Any]], of: str = "") -> dict[str, float]:
    """Means over samples, and the exact binomial test on the tokens of all samples together, or on those "_oov"."""
    means = {name: mean(one[name] for one in samples) for name in ("alone", "both", "alone_oov", "both_oov")}
    lost, won = (sum(one[name + of] for one in samples) for name in ("only_alone", "only_both"))
    return {**means, "only_alone": lost, "only_both": won, "p": float(binomtest(won, won + lost).pvalue)}


def main() -> None:
    config = load_config(FOLDER / "pos-hmm-ewt-tenth-rest.toml").ordered()
    texts = read(run_config(to_tables(config), ["data.tagged_every=1", "data.untagged="]))
    found = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    for every, samples in SAMPLES.items():
        by_first = found.setdefault(str(every), {})
        for first in range(samples):
            if str(first) not in by_first:
                by_first[str(first)] = compare(config, sample(texts, every, first))
                write_text(FOUND, json.dumps(found, indent=1) + "\n")
        print(every, pooled(list(by_first.values())))
    print("OOV:", pooled(list(found["10"].values()), "_oov"))


if __name__ == "__main__":
    main()
