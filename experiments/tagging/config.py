"""The configuration of a tagging experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggingRun:
    """All options of a run."""

    task: str = "crf"  # crf | senses (the number of states of ambiguous words)
    data: str = "ud_ewt"  # labelled text, see trellis.corpus.tagged; newswire: conll2000-pos and treebank_sample
    test: str = ""  # another data set for testing
    tags: str = "own"  # own | universal | common (names as common nouns) | NP (no other chunks)
    representations: str = ""  # names, see representations.py, separated by blanks
    text: str = "general"  # the unlabelled text they are learned from: general | bio | names
    template: str = ""  # see trellis.families.crf.templates
    scheme: str = "IOB2"
    scale: float = 0.3
    pos: bool = True
    unseen: bool = True  # weights also for attributes and labels that never occur together
    min_count: int = 1  # tokens that an attribute must have
    l2: float = 0.3
    iterations: int = 60
    learner: str = "lbfgs"
    base: str = ""  # the run to compare with
    rivals: str = ""  # more runs to compare with, separated by blanks
    seed: int = 0
    device: str = "cpu"
