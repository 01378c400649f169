"""Fit an n-gram model: count n-grams and smooth the counts."""

from trellis.families.ngram.model import NGram
from trellis.training.fit import Fitted, Job


def by_counts(job: Job) -> Fitted:
    config, corpus = job.config.model, job.corpus
    return Fitted(NGram.fit(corpus.vocab, corpus["train"], config.order, config.cross_sentences))
