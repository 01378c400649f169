"""Probabilistic context-free grammars with low-rank rule probabilities."""

from trellis.registry import Family

FAMILY = Family(
    name="pcfg",
    title="Probabilistic context-free grammar",
    use="Scoring, parsing and infilling of sentences, with exact posteriors over their constituents.",
    limits="Time grows with the cube of the sentence length, and the symbols are learned, not those of a treebank.",
    config="trellis.families.pcfg.config:PCFGConfig",
    model="trellis.families.pcfg.model:PCFG",
    build="trellis.families.pcfg.model:build",
    choose="trellis.families.pcfg.config:choose",
    learners={
        "gradient": "trellis.learning.gradient:GradientLearner",
        "em": "trellis.learning.em:EMLearner",
        "stepwise-em": "trellis.learning.em:StepwiseEMLearner",
    },
    explore="trellis.families.pcfg.views:PCFGViews",
    report="trellis.families.pcfg.sections:sections",
    order="sentences",
)
