"""n-gram models with interpolated modified Kneser-Ney smoothing."""

from dataclasses import replace

from trellis.registry import Family

FAMILY = Family(
    name="ngram",
    title="n-gram model",
    use="A baseline, and scoring or sampling of text.",
    limits="The model has no memory beyond its last words, and it memorises frequent phrases of its text.",
    config="trellis.families.ngram.config:NGramConfig",
    train="trellis.config:FitConfig",
    model="trellis.families.ngram.model:NGram",
    learners={"counts": "trellis.families.ngram.fit:by_counts"},
    fit="trellis.training.fit:directly",
    explore="trellis.families.ngram.views:NGramViews",
    exports={"arpa": "trellis.families.ngram.arpa:write_arpa"},
    imports=dict.fromkeys((".arpa", ".arpa.gz"), "trellis.families.ngram.arpa:read_arpa"),
)
UNIGRAM = replace(FAMILY, name="unigram", title="Unigram model", config="trellis.families.ngram.config:UnigramConfig")
BIGRAM = replace(FAMILY, name="bigram", title="Bigram model", config="trellis.families.ngram.config:BigramConfig")
