"""`python -m experiments.tagging.untagged_study`: what untagged text adds to an HMM tagger, by amount of tagged text.

The tags of every n-th sentence of UD-EWT are used, beginning with several sentences: each beginning is another sample
of tagged text. A tagger of the tagged sentences alone is compared with taggers that also learn from untagged text (see
`LEARNERS`). Writes untagged.json; what it already has is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, compress
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import binomtest

from trellis.config import RunConfig, load_config, run_config
from trellis.corpus.lexicon import Sentence
from trellis.corpus.tagged import Tagged
from trellis.families.hmm_tagger.fit import Texts, fit, read
from trellis.families.hmm_tagger.model import HMMTagger
from trellis.options import to_tables
from trellis.storage import write_text
from trellis.tasks.tagging import compare_tags, score_tags, word_counts
from trellis.training.fit import Job

FOLDER = Path(__file__).parent
FOUND = FOLDER / "untagged.json"
SAMPLES = {10: 3, 30: 3, 100: 3}  # samples of tagged text by n; the first with n = 10 is that of the runs
ALONE = "alone"
LEARNERS = {  # the run with their settings, additional untagged text, and passes over all tagged text per pass
    ALONE: ("pos-hmm-ewt-tenth", "", 0),
    "rest": ("pos-hmm-ewt-tenth-rest", "", 1),  # the sentences whose tags are not used, without new words
    "words": ("pos-hmm-ewt-tenth-words", "", 1),
    "wikitext": ("pos-hmm-ewt-tenth-words", "wikitext-2", 5),
}
Tags = list[list[str]]


def settings(run: str, untagged: str = "") -> RunConfig:
    """The configuration of a run; the whole text is tagged."""
    tables = to_tables(load_config(FOLDER / f"{run}.toml"))
    return run_config(tables, ["data.tagged_every=1", f"data.untagged={untagged}"]).ordered()


@cache
def text(untagged: str) -> Texts:
    return read(settings("pos-hmm-ewt-tenth", untagged))


def sample(texts: Texts, every: int, first: int, more: Iterable[Sentence] = (), weight: int = 1) -> Texts:
    """Every n-th training sentence from `first` on with its tags, the others and `more` without. With a weight of 0,
    there is no untagged text."""
    whole = texts["train"]
    tagged = Tagged(whole.words[first::every], whole.tags[first::every])
    others = [words for number, words in enumerate(whole.words) if number % every != first]
    untagged = [*others, *more] if weight else []
    return replace(texts, splits=texts.splits | {"train": tagged}, untagged=untagged, weight=max(weight * every, 1))


def tags(learner: str, every: int, first: int) -> Tags:
    """The tags of the test text by a new tagger."""
    run, more, weight = LEARNERS[learner]
    texts = sample(text(""), every, first, text(more).untagged, weight)
    fitted = fit(Job(settings(run), texts, "cpu"))
    if fitted.state.interrupted:
        raise KeyboardInterrupt
    assert isinstance(fitted.model, HMMTagger)
    return fitted.model.tag(texts["test"].words)


def compare(test: Tagged, known: Mapping[str, int], alone: Tags, found: Tags) -> dict[str, float]:
    """Accuracies on the test text, and the numbers of tokens that only this tagger (won) or only that of tagged text
    (lost) gets right. `_oov`: words that are not known."""
    score = score_tags(test, found, known=known)
    apart, apart_oov = compare_tags(test, alone, found), compare_tags(*unknown(known, test, alone, found))
    return {
        "accuracy": 100.0 * score.accuracy,
        "accuracy_oov": 100.0 * score.buckets["oov"].f1,
        "won": apart.only_second,
        "lost": apart.only_first,
        "won_oov": apart_oov.only_second,
        "lost_oov": apart_oov.only_first,
    }


def unknown(known: Mapping[str, int], data: Tagged, *found: Tags) -> tuple[Tagged, Tags, Tags]:
    """The words that are not known, with their tags and those of two taggers, as one sentence."""
    new = [word not in known for words in data.words for word in words]
    rows = (data.words, data.tags, *found)
    words, tags, first, second = ([list(compress(chain.from_iterable(row), new))] for row in rows)
    return Tagged(words, tags), first, second


def pooled(samples: list[dict[str, float]], of: str = "") -> dict[str, float]:
    """The mean accuracy over samples, and the exact binomial test on the tokens of all samples together, or on those
    "_oov"."""
    lost, won = (sum(int(one[name + of]) for one in samples) for name in ("lost", "won"))
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return {"accuracy": mean(one["accuracy" + of] for one in samples), "won": won, "lost": lost, "p": p}


def study(found: dict[str, Any], every: int, first: int) -> None:
    """Add what is missing of one sample to `found`."""
    results = found.setdefault(str(every), {}).setdefault(str(first), {})
    missing = [name for name in LEARNERS if name not in results]
    alone = tags(ALONE, every, first) if missing else []
    test, known = text("")["test"], word_counts(sample(text(""), every, first)["train"])
    for name in missing:
        results[name] = compare(test, known, alone, alone if name == ALONE else tags(name, every, first))
        write_text(FOUND, json.dumps(found, indent=1) + "\n")


def table(found: dict[str, dict[str, Any]]) -> str:
    """Mean accuracies by amount of tagged text and learner in Markdown, with those on words that are not known."""
    lines = []
    for every, samples in found.items():
        results = [[sample[name] for sample in samples.values()] for name in LEARNERS]
        cells = [f"{pooled(one)['accuracy']:.1f} % ({pooled(one, '_oov')['accuracy']:.1f} %)" for one in results]
        lines.append(f"| one in {every} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    for every, samples in SAMPLES.items():
        for first in range(samples):
            study(found, every, first)
        for name in LEARNERS:
            results = [one[name] for one in found[str(every)].values()]
            print(f"one in {every}", name, pooled(results), "OOV:", pooled(results, "_oov"))
    print(table(found))


if __name__ == "__main__":
    main()
