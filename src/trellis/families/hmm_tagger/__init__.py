"""The HMM tagger: an HMM whose states emit words and tags."""

from trellis.families.hmm import FAMILY as HMM
from trellis.registry import Family

FAMILY = Family(
    name="hmm-tagger",
    title="HMM tagger",
    use="Tagging of tokenised text like the training text, and the queries of an HMM language model.",
    limits="Inference is exact. Training finds a local optimum. Unknown words are tagged by their spelling alone.",
    config="trellis.families.hmm_tagger.config:HMMTaggerConfig",
    data="trellis.families.hmm_tagger.config:PartlyTaggedConfig",
    model="trellis.families.hmm_tagger.model:HMMTagger",
    learners={"em": "trellis.learning.em:EMLearner", "gradient": "trellis.learning.gradient:GradientLearner"},
    read="trellis.families.hmm_tagger.fit:read",
    fit="trellis.families.hmm_tagger.fit:fit",
    evaluate="trellis.families.hmm_tagger.fit:evaluate",
    report="trellis.families.hmm.sections:sections",
    explore="trellis.families.hmm_tagger.views:HMMTaggerViews",
    exports=HMM.exports,
    order="sentences",
)
