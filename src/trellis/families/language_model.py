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
from trellis.tasks.compare import fit_weights, interpolate
from trellis.tasks.scores import Scores

SENTENCES, LONGEST = 3, 40  # number of samples, and their maximum length in tokens
logger = logging.getLogger(__name__)
LogProbs = dict[str, np.ndarray]  # log p of every token, by split


def evaluate(model: LanguageModel, corpus: Corpus, run: RunConfig) -> Scores:
    """Perplexity on every split and bits per character on the last, with n-gram models for comparison, and the mixture
    of the model and the longest n-gram model."""
    order, names = run.batches.order, {n: NAMES.get(n, f"{n}-gram") for n in baseline_orders(corpus, run.eval)}
    logger.info(f"evaluating on {', '.join(corpus.splits)}, and comparing with n-gram models")
    models = [NGram.fit(corpus.vocab, corpus["train"], n) for n, name in names.items() if name != model.name]
    scored = [(one, held_out(one, corpus, order)) for one in (*models, model)]
    rows = [measure(one, corpus, order, log_probs) for one, log_probs in scored]
    own = "parameters", *corpus.splits, "bits_per_character"
    values = {name: rows[-1][name] for name in own if rows[-1][name] is not None}
    if max(names) > 2 and len(scored) > 1 and model.family != "ngram" and "valid" in corpus.splits:
        rows.insert(-1, mixture(corpus, scored[-1], scored[-2]))
    return Scores("perplexity", values, rows, headline=[*corpus.splits][-1])


def baseline_orders(corpus: Corpus, config: EvalConfig) -> list[int]:
    """The orders of the n-gram models for comparison: 1, 2, and `eval.ngram` (or the longest that the sentences have).
    If the training text is too long for that, only 1 and 2."""
    split = corpus["train"]
    if config.ngram and split.tokens.size > config.ngram_tokens:
        limit = f"{config.ngram_tokens:,} tokens (eval.ngram_tokens)"
        logger.info(f"no {config.ngram}-gram model in the table: the training text has more than {limit}")
        return [1, 2]
    longest = 1 + int(np.diff(split.sentences).max())
    return sorted({1, 2, min(config.ngram, longest)} - {0})


def held_out(model: LanguageModel, corpus: Corpus, order: str) -> LogProbs:
    """log p of every token of every split except the training text."""
    names = (name for name in corpus.splits if name != "train")
    return {name: lm.in_text_order(model, lm.READINGS[order](corpus[name])) for name in names}


def measure(model: LanguageModel, corpus: Corpus, order: str, log_probs: LogProbs) -> dict[str, Any]:
    """Perplexity on every split, bits per character on the last one, and scoring speed in tokens per second on the
    batched training text."""
    begun = time.perf_counter()
    train = lm.evaluate(model, lm.side_by_side(order, corpus["train"])).perplexity
    speed = corpus["train"].tokens.size / (time.perf_counter() - begun)
    size = {"model": model.name, "states": model.num_states, "parameters": model.num_parameters()}
    return size | {"train": train} | figures(corpus, log_probs) | {"tokens_per_second": speed}


def mixture(corpus: Corpus, *parts: tuple[LanguageModel, LogProbs]) -> dict[str, Any]:
    """The row of a linear mixture, with weights fitted on the validation split."""
    stacked = {name: np.stack([log_probs[name] for _, log_probs in parts]) for name in parts[0][1]}
    weights = fit_weights(stacked["valid"])
    models = [model for model, _ in parts]
    name = " + ".join(model.name for model in models)
    logger.info(f"{name}: weights {', '.join(f'{weight:.2f}' for weight in weights)}, fitted on the validation split")
    size = {"model": name, "states": None, "parameters": sum(model.num_parameters() for model in models)}
    log_probs = {split: interpolate(values, weights) for split, values in stacked.items()}
    return size | {"train": None} | figures(corpus, log_probs) | {"tokens_per_second": None}


def figures(corpus: Corpus, log_probs: LogProbs) -> dict[str, float | None]:
    """Perplexity on splits, and bits per character on the last."""
    found = {
        name: lm.Evaluation(float(values.sum()), values.size, corpus[name].num_characters)
        for name, values in log_probs.items()
    }
    last = list(found.values())[-1]
    return {name: one.perplexity for name, one in found.items()} | {"bits_per_character": last.bits_per_character}


def sections(model: LanguageModel) -> list[Markup]:
    """The report sections of a language model."""
    return [samples_section(model.sample(SENTENCES, LONGEST))]


def samples_section(sentences: list[str], *more: Markup) -> Markup:
    caption = f"Random samples, at most {LONGEST} tokens each."
    quotes = (element("blockquote", text(sentence) or "(an empty sentence)") for sentence in sentences)
    return section("Samples", caption, *quotes, *more)
