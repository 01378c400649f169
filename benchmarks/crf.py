"""A CRF with the 19 attributes of crfsuite's chunker on CoNLL-2000, against crfsuite: seconds per iteration."""

from __future__ import annotations

import os
from time import perf_counter

import torch

from benchmarks.race import options
from benchmarks.report import emit
from trellis.corpus.tagged import load_tagged
from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
from trellis.families.crf.learning import train_crf
from trellis.families.crf.model import CRF
from trellis.families.crf.tagger import CRFTagger

QUICK = 500  # sentences
ITERATIONS = 10, 40  # the time per iteration is the difference, without the set-up


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    if "TRELLIS_DATA" not in os.environ:
        emit("crf", "CoNLL-2000", "one iteration", None, "crfsuite", "no $TRELLIS_DATA", None, "s")
        return
    data = load_tagged("conll2000", "train")[: QUICK if chosen.quick else None]
    tagger = CRFTagger.train(data, CRFTaggerConfig(template="chunk"), CRFTrainConfig(iterations=1))
    attributes = tagger.attributes(data.words, data.pos, [])
    features, number = tagger.features(attributes, data.words, []), {tag: i for i, tag in enumerate(tagger.labels)}
    gold = torch.tensor([number[tag] for tags in data.tags for tag in tags])
    seconds = {}
    for learner in ("lbfgs", "crfsuite"):
        ends = []
        for iterations in ITERATIONS:
            begin = perf_counter()
            config = CRFTrainConfig(learner, l2=0.5, iterations=iterations, tolerance=0.0)
            train_crf(CRF(len(number), len(tagger.index), pairs=tagger.crf.pairs), features, gold, config)
            ends.append(perf_counter() - begin)
        seconds[learner] = (ends[1] - ends[0]) / (ITERATIONS[1] - ITERATIONS[0])
    ours, theirs = seconds.values()
    case = f"CoNLL-2000, {len(data)} sentences, {len(tagger.index)} attributes"
    emit("crf", case, "one iteration", ours, "crfsuite", theirs, theirs / ours, "s")
