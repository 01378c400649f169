"""The options of an HMM tagger."""

from dataclasses import dataclass

from trellis.config import RunConfig, TaggedDataConfig
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.options import option


@dataclass(frozen=True)
class HMMTaggerConfig(HMMConfig):
    """The options of an HMM, and how states relate to tags. Unknown words are replaced by their spelling class."""

    family: str = "hmm-tagger"
    states: int = option(256, "number of hidden states. 0: one per tag", within="[0, 1e9]")
    hard_tags: bool = option(False, "each state keeps its initial tag")
    rare: int = option(2, "words seen at most this often train the spelling classes", within="[0, inf)")
    min_kind: int = option(5, "minimum number of tokens in a spelling class", within="[0, inf)")
    backoff: float = option(
        0.0,
        "em: pseudocounts of a word, distributed over states like the counts of its spelling class",
        within="[0, 1e9]",
    )
    untagged_words: int = option(
        0,
        "em with backoff: add words to the vocabulary that occur at least this often in untagged text only. 0: none",
        within="[0, inf)",
    )

    def check(self, run: RunConfig) -> None:
        if self.untagged_words and not (self.backoff and run.train.learner == "em"):
            raise TrellisError(
                'model.untagged_words needs train.learner = "em" and model.backoff above 0: before the untagged text '
                "is read, new words have the states of their spelling class."
            )


@dataclass(frozen=True)
class PartlyTaggedConfig(TaggedDataConfig):
    """The tagged text (see trellis.corpus.tagged), and how much of it is used with its tags."""

    tagged_every: int = option(1, "use the tags of every n-th sentence. 0: use no tags", within="[0, inf)")
    tagged_weight: int = option(1, "passes over tagged text per pass over untagged text", within="[1, 1e6]")
    untagged: str = option("", 'additional untagged text: "rest" (the other sentences), or any source')
