"""Evaluation and reports shared by all language models: perplexity, n-gram baselines, samples."""

import time
from typing import Any

from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.ngram.model import NAMES, NGram
from trellis.models.base import LanguageModel
from trellis.report.format import text
from trellis.report.markup import Markup, element, section
from trellis.tasks import lm
from trellis.tasks.scores import Scores

SENTENCES, LONGEST = 3, 40  # number of samples, and their maximum length in tokens
SPLITS = "train", "valid", "test"


def evaluate(model: LanguageModel, corpus: Corpus, run: RunConfig) -> Scores:
    """Perplexity on every split, with unigram and bigram baselines."""
    baselines = [NGram.fit(corpus.vocab, corpus["train"], n) for n, name in NAMES.items() if name != model.name]
    rows = [measure(one, corpus, run.batches.order) for one in (*baselines, model)]
    values = {name: rows[-1][name] for name in ("parameters", *SPLITS)}
    return Scores("perplexity", values, rows, headline="test")


def measure(model: LanguageModel, corpus: Corpus, order: str) -> dict[str, Any]:
    """Perplexity on every split, and scoring speed in tokens per second on the batched training text."""
    perplexity = {name: lm.evaluate(model, lm.READINGS[order](corpus[name])).perplexity for name in ("valid", "test")}
    begun = time.perf_counter()
    perplexity["train"] = lm.evaluate(model, lm.side_by_side(order, corpus["train"])).perplexity
    speed = corpus["train"].tokens.size / (time.perf_counter() - begun)
    size = {"model": model.name, "states": model.num_states, "parameters": model.num_parameters()}
    return size | {name: perplexity[name] for name in SPLITS} | {"tokens_per_second": speed}


def sections(model: LanguageModel) -> list[Markup]:
    """The report sections of a language model."""
    return [samples_section(model.sample(SENTENCES, LONGEST))]


def samples_section(sentences: list[str], *more: Markup) -> Markup:
    caption = f"Random samples, at most {LONGEST} tokens each."
    quotes = (element("blockquote", text(sentence) or "(an empty sentence)") for sentence in sentences)
    return section("Samples", caption, *quotes, *more)
