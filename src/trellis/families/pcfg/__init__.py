"""Probabilistic context-free grammars with rules of low rank."""

from trellis.registry import Family

FAMILY = Family(
    name="pcfg",
    title="Probabilistic context-free grammar",
    config="trellis.families.pcfg.config:PCFGConfig",
    model="trellis.families.pcfg.model:PCFG",
    build="trellis.families.pcfg.model:build",
    learners={
        "gradient": "trellis.learning.gradient:GradientLearner",
        "em": "trellis.learning.em:EMLearner",
        "stepwise-em": "trellis.learning.em:StepwiseEMLearner",
    },
    report="trellis.families.pcfg.sections:sections",
    order="sentences",
)
