"""A family: a mixture of unigram models, in which each sentence comes from one component."""

from trellis.registry import Family

FAMILY = Family(
    name="mixture",
    title="Mixture of unigrams",
    config="mixture_family.config:MixtureConfig",
    model="mixture_family.model:Mixture",
    build="mixture_family.model:build",
    learners={"gradient": "trellis.learning.gradient:GradientLearner"},
    report="mixture_family.report:sections",
    order="sentences",
)
