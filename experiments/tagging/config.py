"""A run of the tagging experiments as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggingRun:
    """Everything that decides a run."""

    task: str = "crf"  # crf | senses (how many states ambiguous words have)
    data: str = "ud_ewt"  # labelled text, see trellis.corpus.tagged; newswire: conll2000-pos and treebank_sample
    test: str = ""  # another data set to be tested on
    tags: str = "own"  # own | universal | common (names as common nouns) | NP (no other chunks)
    representations: str = ""  # names, see representations.py, with blanks between them
    text: str = "general"  # unlabelled text that they are learned from: general | bio | names
    template: str = ""  # see trellis.families.crf.templates
    scheme: str = "IOB2"
    scale: float = 0.3
    pos: bool = True
    unseen: bool = True  # weights also for attributes and labels that never occur together
    min_count: int = 1  # tokens that an attribute must have
    l2: float = 0.3
    iterations: int = 60
    learner: str = "lbfgs"
    base: str = ""  # the run that it is compared with
    seed: int = 0
    device: str = "cpu"
