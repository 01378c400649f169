"""The linear dynamical system over words."""

from trellis.registry import Family

FAMILY = Family(
    name="lds",
    title="Linear dynamical system",
    use="Vectors of words in context.",
    limits="Words are treated as Gaussian vectors, so the model has no perplexity. Training is approximate (ASOS).",
    config="trellis.families.lds.config:LDSConfig",
    train="trellis.families.lds.config:LDSTrainConfig",
    model="trellis.families.lds.model:LDS",
    learners={"em": "trellis.families.lds.fit:by_em", "subspace": "trellis.families.lds.fit:by_subspace"},
    fit="trellis.training.fit:directly",
    evaluate="trellis.families.lds.fit:evaluate",
    report="trellis.families.lds.sections:sections",
    explore="trellis.families.lds.views:LDSViews",
)
