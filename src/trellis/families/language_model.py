"""Evaluation and reports shared by all language models: perplexity, n-gram baselines, samples."""

import logging
import time
from typing import Any

import numpy as np

from trellis.config import EvalConfig, RunConfig
from trellis.corpus import Corpus
from trellis.families.ngram.model import NAMES, NGram
from trellis.models.base import LanguageModel
from trellis.report.format import text
from trellis.report.markup import Markup, element, section
from trellis.tasks import lm
from trellis.tasks.scores import Scores

SENTENCES, LONGEST = 3, 40  # number of samples, and their maximum length in tokens
logger = logging.getLogger(__name__)


def evaluate(model: LanguageModel, corpus: Corpus, run: RunConfig) -> Scores:
    """Perplexity on every split and bits per character on the last, with n-gram models for comparison."""
    names = {order: NAMES.get(order, f"{order}-gram") for order in baseline_orders(corpus, run.eval)}
    baselines = (NGram.fit(corpus.vocab, corpus["train"], order) for order, name in names.items() if name != model.name)
    rows = [measure(one, corpus, run.batches.order) for one in (*baselines, model)]
    own = "parameters", *corpus.splits, "bits_per_character"
    values = {name: rows[-1][name] for name in own if rows[-1][name] is not None}
    return Scores("perplexity", values, rows, headline=[*corpus.splits][-1])


def baseline_orders(corpus: Corpus, config: EvalConfig) -> list[int]:
    """1, 2, and eval.ngram (or the longest that the sentences have), unless the training text is too long for that."""
    split = corpus["train"]
    if config.ngram and split.tokens.size > config.ngram_tokens:
        limit = f"{config.ngram_tokens:,} tokens (eval.ngram_tokens)"
        logger.info(f"no {config.ngram}-gram model in the table: the training text has more than {limit}")
        return [1, 2]
    longest = 1 + int(np.diff(split.sentences).max())
    return sorted({1, 2, min(config.ngram, longest)} - {0})


def measure(model: LanguageModel, corpus: Corpus, order: str) -> dict[str, Any]:
    """Perplexity on every split, bits per character on the last one, and scoring speed in tokens per second on the
    batched training text."""
    found = {name: lm.evaluate(model, lm.READINGS[order](corpus[name])) for name in corpus.splits if name != "train"}
    begun = time.perf_counter()
    train = lm.evaluate(model, lm.side_by_side(order, corpus["train"]))
    speed = corpus["train"].tokens.size / (time.perf_counter() - begun)
    size = {"model": model.name, "states": model.num_states, "parameters": model.num_parameters()}
    bits = {"bits_per_character": list(found.values())[-1].bits_per_character}
    perplexity = {name: one.perplexity for name, one in {"train": train, **found}.items()}
    return size | perplexity | bits | {"tokens_per_second": speed}


def sections(model: LanguageModel) -> list[Markup]:
    """The report sections of a language model."""
    return [samples_section(model.sample(SENTENCES, LONGEST))]


def samples_section(sentences: list[str], *more: Markup) -> Markup:
    caption = f"Random samples, at most {LONGEST} tokens each."
    quotes = (element("blockquote", text(sentence) or "(an empty sentence)") for sentence in sentences)
    return section("Samples", caption, *quotes, *more)
