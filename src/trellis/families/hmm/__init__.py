"""The hidden Markov model."""

from trellis.registry import Family

FAMILY = Family(
    name="hmm",
    title="Hidden Markov model",
    use="Scoring, infilling and sampling of text, constrained generation, and features of words in context.",
    limits="Inference is exact. Training finds a local optimum. Text is less fluent than that of neural models.",
    config="trellis.families.hmm.config:HMMConfig",
    model="trellis.families.hmm.model:HMM",
    build="trellis.families.hmm.model:build",
    choose="trellis.families.hmm.auto:choose",
    learners={
        "stepwise-em": "trellis.learning.em:StepwiseEMLearner",
        "em": "trellis.learning.em:EMLearner",
        "gradient": "trellis.learning.gradient:GradientLearner",
    },
    report="trellis.families.hmm.sections:sections",
    explore="trellis.families.hmm.views:HMMViews",
    exports={
        "numpy": "trellis.families.hmm.export:write_numpy",
        "hmmlearn": "trellis.families.hmm.export:write_hmmlearn",
    },
)
