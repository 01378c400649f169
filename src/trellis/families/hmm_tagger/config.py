"""The options of an HMM tagger."""

from dataclasses import dataclass

from trellis.config import TaggedDataConfig
from trellis.families.hmm.config import HMMConfig
from trellis.options import option


@dataclass(frozen=True)
class HMMTaggerConfig(HMMConfig):
    """Those of an HMM, and what its states have to do with tags and unseen words."""

    family: str = "hmm-tagger"
    states: int = option(256, "hidden states; 0: one for each tag", within="[0, inf)")
    hard_tags: bool = option(False, "a state keeps the one tag that it begins with")
    rare: int = option(2, "words seen at most this often train the model of unseen words", within="[0, inf)")
    min_kind: int = option(5, "tokens that a kind of unseen words needs", within="[0, inf)")
    backoff: float = option(0.0, "em: pseudocounts of a word in the states of its kind", within="[0, inf)")


@dataclass(frozen=True)
class PartlyTaggedConfig(TaggedDataConfig):
    """Tagged text (see trellis.corpus.tagged), and how much of it is read with its tags."""

    tagged_every: int = option(1, "one sentence in so many has tags; 0: none", within="[0, inf)")
    tagged_weight: int = option(1, "times that tagged text is read while the other is once", within="[1, inf)")
    untagged: str = option("", 'more text, without tags: "rest" (the other sentences), or any source')
