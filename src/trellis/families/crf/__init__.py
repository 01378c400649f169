"""The linear-chain CRF tagger."""

from trellis.registry import Family

FAMILY = Family(
    name="crf",
    title="CRF tagger",
    use="Tagging of tokenised text like the training text.",
    limits="Tags of words that do not occur in the training text depend on spelling, context and added features.",
    config="trellis.families.crf.config:CRFTaggerConfig",
    data="trellis.config:TaggedDataConfig",
    train="trellis.families.crf.config:CRFTrainConfig",
    model="trellis.families.crf.tagger:CRFTagger",
    learners={
        "lbfgs": "trellis.families.crf.learning:by_lbfgs",
        "adagrad": "trellis.families.crf.learning:by_adagrad",
        "crfsuite": "trellis.families.crf.learning:by_crfsuite",
    },
    read="trellis.families.crf.tagger:read",
    fit="trellis.families.crf.tagger:fit",
    evaluate="trellis.families.crf.tagger:evaluate",
    report="trellis.families.crf.tagger:sections",
    explore="trellis.families.crf.views:CRFViews",
)
