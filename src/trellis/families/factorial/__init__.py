"""The factorial HMM."""

from trellis.registry import Family

FAMILY = Family(
    name="fhmm",
    title="Factorial hidden Markov model",
    use="Scoring of text, and features of words in context.",
    limits="Likelihoods are exact. Training, posteriors and Viterbi paths use a mean-field approximation by default.",
    config="trellis.families.factorial.config:FHMMConfig",
    train="trellis.families.factorial.config:FHMMTrainConfig",
    model="trellis.families.factorial.model:FHMM",
    build="trellis.families.factorial.model:build",
    learners={
        "stepwise-em": "trellis.families.factorial.variational_em:StepwiseVariationalLearner",
        "em": "trellis.families.factorial.variational_em:VariationalEMLearner",
        "gradient": "trellis.learning.gradient:GradientLearner",
    },
    explore="trellis.families.factorial.views:FHMMViews",
    order="sentences",
)
