"""trellis generate"""

from __future__ import annotations

import argparse
import logging
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import add_device, add_model, check_picture, positive, seed
from trellis.cli.console import Answer, Lines
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.constraints import Constraint
    from trellis.corpus import Vocabulary
    from trellis.models.conditioned import Conditioned

SUMMARY = "generate sentences that satisfy constraints, by exact inference"
EXAMPLE = 'trellis generate demo --contains "a list" --not "the" --words 5..12 -n 5'
SMALLEST = -700.0  # a log-probability of which exp does not underflow
PARTS = {  # the kinds of `conjunction`: placeholder and help
    "contains": ("PHRASE", "sentences with a word or phrase"),
    "not": ("PHRASE", "sentences without a word or phrase"),
    "begins": ("PHRASE", "sentences that begin with a phrase"),
    "ends": ("PHRASE", "sentences that end with a phrase"),
    "template": ("TEXT", "a text with gaps: ___ is one word, ___{1,3} one to three"),
    "tokens": ("PATTERN", "a regular expression over words: '(the | a) .* [list string]'"),
    "regex": ("PATTERN", "a regular expression over characters that matches the whole sentence"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_device(parser)
    for name, (placeholder, text) in PARTS.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar=placeholder, help=text)
    parser.add_argument("--in-order", action="store_true", help="require the phrases of --contains in the given order")
    parser.add_argument(
        "--words",
        type=bounds,
        default=(0, None),
        metavar="A..B",
        help="number of words, such as 5..12 or 8.. (default ..100)",
    )
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help="how the sentences begin; probabilities are conditional on it"
    )
    parser.add_argument("-n", type=positive, default=1, help="number of sentences to sample (default 1)")
    parser.add_argument("--best", action="store_true", help="print the most probable sentence, not samples (HMMs only)")
    parser.add_argument("--log-probs", action="store_true", help="print log p(sentence) and a tab before each sentence")
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default 0)")
    parser.add_argument("--draw", type=Path, metavar="FILE.svg", help="draw the automaton of the constraint")


def bounds(text: str) -> tuple[int, int | None]:
    """Parse 8..15, 8.., ..15 or 8."""
    match = re.fullmatch(r"(\d{0,9})\.\.(\d{0,9})|(\d{1,9})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of words such as 8..15, 8.. or ..15")
    if match[3]:
        return int(match[3]), int(match[3])
    return int(match[1] or 0), int(match[2]) if match[2] else None


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.draw)
    constraint = constraint_of(args)
    if args.best and args.n != 1:
        raise TrellisError("--best prints one sentence; omit -n.")
    from trellis.models.files import load

    model = load(args.model, None, args.device)
    found = model.constrain(constraint, *args.words)
    if args.draw is not None:
        from trellis.report.automaton import AutomatonPicture

        AutomatonPicture(found.automaton, model.vocab.words).save(args.draw)
    data = described(found, args.prompt)
    warn_of_unknown(model.vocab, args.prompt)
    logging.info(summary(data))
    if args.best:
        best = found.best(args.prompt)
        data["sentences"] = [{"text": best.text, "log_prob": best.log_prob, "proved": best.proved}]
        if not best.proved:
            logging.info("The search reached its limit; a more probable sentence may exist.")
    else:
        data["sentences"] = [one._asdict() for one in found.samples(args.n, args.prompt, args.seed)]
    line = "{log_prob:.4f}\t{text}" if args.log_probs else "{text}"
    return Answer(data, [Lines([line.format(**sentence) for sentence in data["sentences"]])])


def warn_of_unknown(vocab: Vocabulary, prompt: str) -> None:
    """Warn if most words of the prompt are not in the vocabulary."""
    words = vocab.split(prompt)
    unknown = [word for word in words if word not in vocab.index]
    if len(unknown) * 2 > len(words):
        logging.warning(
            f"{len(unknown)} of the {len(words)} words of the prompt, such as {unknown[0]!r}, are not in the model's "
            "vocabulary and are read as <unk>."
        )


def constraint_of(args: argparse.Namespace) -> Constraint:
    """The conjunction of all parts."""
    from trellis.constraints.constructors import conjunction

    if args.in_order and len(args.contains) < 2:
        raise TrellisError("--in-order needs at least two phrases; repeat --contains.")
    return conjunction({name: getattr(args, name) for name in PARTS}, args.in_order)


def described(found: Conditioned, prompt: str) -> dict[str, Any]:
    """The constraint and its exact probability."""
    log_prob = found.log_prob(prompt)
    return {
        "constraint": found.constraint.name,
        "words": [found.span.least, found.span.most],
        "prompt": prompt,
        "log_prob": log_prob,
        "log_prob_longer": found.log_prob_longer(prompt),
        "expected_words": found.expected_length(prompt),
        "states": len(found.automaton.moves),
    }


def summary(data: dict[str, Any]) -> str:
    """The probability of the constraint, in one line."""
    given, log_prob = " | prompt" if data["prompt"] else "", data["log_prob"]
    least, most = data["words"]
    return (
        f"p(constraint{given}) = {probability(log_prob, 6)} for {least} to {most} words "
        f"(expected: {data['expected_words']:.1f}); "
        f"p(more than {most} words{given}) = {probability(data['log_prob_longer'], 3)}"
    )


def probability(log_prob: float, digits: int) -> str:
    """exp(log_prob), as a power of e if it underflows."""
    if log_prob > SMALLEST or log_prob == -math.inf:
        return f"{math.exp(log_prob):.{digits}g}"
    return f"exp({log_prob:.{digits}g})"
