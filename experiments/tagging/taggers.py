"""The tagging experiments: CRFs with templates and representations, and the senses captured by hidden states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np

from experiments.paper import Job, Outcome
from experiments.results import Figures
from experiments.tagging.config import TaggingRun
from experiments.tagging.representations import encoder_spec
from experiments.universal import only, universal
from trellis.corpus.tagged import TAGGED, Tagged, load_tagged
from trellis.devices import choose_device
from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
from trellis.families.crf.encoders import ENCODERS, SWEEPS, ModelEncoder, split_spec
from trellis.families.crf.tagger import CRFTagger, Words
from trellis.families.crf.templates import Attributes
from trellis.families.factorial.model import FHMM
from trellis.models.files import FILE, save_model
from trellis.options import choose
from trellis.storage import write_text
from trellis.tasks.tagging import TagScores, compare_tags, score_tags

AMBIGUOUS = "and", "share", "signaling"  # the paper's
COMMON = {"NNP": "NN", "NNPS": "NNS"}  # GENIA's names are common nouns
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
NEWSWIRE = "conll2000-pos", "treebank_sample"
TINY = 1e-30


def labelled(name: str, split: str, tags: str) -> Tagged:
    """A split of a data set, with its tags mapped as the run requires."""
    names = NEWSWIRE if name == "newswire" else (name,)
    parts = [load_tagged(part, split) for part in names]
    data = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    data = written_alike(data) if name == "newswire" else data
    return choose(TAGS, tags, "tags")(data, "medpost" if name == "medpost" else "penn").in_iob2()


def written_alike(data: Tagged) -> Tagged:
    """Write brackets and their tags as GENIA does."""
    words = [[BRACKETS.get(word, word) for word in sentence] for sentence in data.words]
    named = {bracket: name for name, bracket in BRACKETS.items()}
    return Tagged(words, [[named.get(tag, tag) for tag in tags] for tags in data.tags], data.pos)


TAGS: dict[str, Callable[[Tagged, str], Tagged]] = {
    "own": lambda data, tag_set: data,
    "universal": lambda data, tag_set: data.map_tags(lambda tags: universal(tags, tag_set)),
    "common": lambda data, tag_set: data.map_tags(lambda tags: [COMMON.get(tag, tag) for tag in tags]),
    "NP": lambda data, tag_set: data.map_tags(only("NP")),
}


def run_tagging(job: Job) -> Outcome:
    """Train and score a tagger; representations, taggers and predictions are kept in the folder of the job."""
    config: TaggingRun = job.config
    figures = choose(TASKS, config.task, "task")(config, job.run, job.folder)
    return Outcome(" -> ".join(filter(None, [config.data, config.test])), figures)


def run_crf(config: TaggingRun, run: str, folder: Path) -> Figures:
    device = choose_device(config.device)
    specs = ";".join(encoder_spec(name, config.text, folder, device) for name in config.representations.split())
    train = CRFTrainConfig(config.learner, l2=config.l2, iterations=config.iterations)
    same = {name: getattr(config, name) for name in ("template", "scheme", "scale", "pos", "unseen", "min_count")}
    model = CRFTaggerConfig(representations=specs, **same)
    tagger = CRFTagger.train(labelled(config.data, "train", config.tags), model, train, device, config.seed)
    save_model(folder / f"{run}.{config.seed}" / FILE, tagger)
    figures: Figures = {"attributes": len(tagger.index)}
    name = config.test or config.data
    for split in ("valid", "test"):
        if name in TAGGED and split in TAGGED[name].files:
            data = labelled(name, split, config.tags)
            tagger.check(data.tag_set())
            predicted = tagger.tag(data.words, data.pos)
            figures |= named(split, score_tags(data, predicted, tagger.units, tagger.word_counts))
    write_text(folder / f"{run}.{config.seed}.json", json.dumps(predicted))
    for other in (config.base, *config.rivals.split()):
        path = folder / f"{other}.{config.seed}.json"
        if other and path.exists():
            compared = compare_tags(data, json.loads(path.read_text()), predicted, tagger.units, resamples=1000)
            ours = {"binomial_p": compared.p_value, "bootstrap_p": compared.f1.p_value}
            figures |= ours if other == config.base else {f"p_{other}": compared.p_value}
    return figures | layer_use(tagger, data.words)


def layer_use(tagger: CRFTagger, sentences: Words) -> Figures:
    """The effective numbers of states, exp(entropy of the mean posterior), of the layers of a factorial HMM that are
    used least and most."""
    models = [encoder.model for encoder in tagger.encoders if isinstance(encoder, ModelEncoder)]
    for model in models:
        if isinstance(model, FHMM):
            means = np.concatenate(model.posterior(sentences, sweeps=SWEEPS)).mean(0)
            layers = np.split(means, np.cumsum(model.sizes)[:-1])
            used = [float(np.exp(-(layer * np.log(layer + TINY)).sum())) for layer in layers]
            return {"least_used": min(used), "most_used": max(used)}
    return {}


def named(split: str, scores: TagScores) -> Figures:
    """F1 (for tokens, the accuracy), precision, recall and error of every bucket, in percent."""
    figures: Figures = {f"{split}_accuracy": 100 * scores.accuracy}
    for bucket, score in scores.buckets.items():
        values = {"f1": score.f1, "precision": score.precision, "recall": score.recall, "error": 1 - score.f1}
        figures |= {f"{split}_{bucket}_{what}": 100 * value for what, value in values.items()}
        figures[f"{split}_{bucket}_units"] = score.gold
    return figures


def count_senses(config: TaggingRun, run: str, folder: Path) -> Figures:
    """The numbers of distinct states and of tokens of ambiguous words in the training texts of both domains."""
    kind, file = split_spec(encoder_spec(config.representations, config.text, folder, choose_device(config.device)))
    sentences = [words for name in (config.data, "genia") for words in load_tagged(name, "train").words]
    wanted = [words for words in sentences if not set(AMBIGUOUS).isdisjoint(words)]
    seen: dict[str, Counter[tuple[str, ...]]] = {word: Counter() for word in AMBIGUOUS}
    encoded = cast(list[Attributes], ENCODERS[kind](file).encode(wanted))
    for words, states in zip(wanted, encoded, strict=True):
        for word, state in zip(words, states, strict=True):
            if word in seen:
                seen[word][tuple(state)] += 1
    figures: Figures = {f"states_{word}": len(states) for word, states in seen.items()}
    return figures | {f"tokens_{word}": states.total() for word, states in seen.items()}


TASKS: dict[str, Callable[[TaggingRun, str, Path], Figures]] = {"crf": run_crf, "senses": count_senses}
