"""trellis states"""

import argparse
from collections.abc import Sequence
from typing import Any

from trellis.cli.arguments import add_corpus, add_device, add_model, positive
from trellis.cli.console import Answer, Facts, Table
from trellis.report.format import COLUMNS, Column, percent, probability, word

SUMMARY = "show the most informative states and their words"
EXAMPLE = "trellis states demo -n 20"
SHOWN = 0.01  # probability of a word or next state in the table; JSON has all that were asked for
SUMMARIES = {
    "state": COLUMNS["state"],
    "occupancy": Column("share", percent),
    "words": Column("words", lambda ranked: " ".join(word(token) for token, _ in shown(ranked))),
    "next_states": Column(
        "next states", lambda states: " ".join(f"{z} ({probability(p).removeprefix('0')})" for z, p in shown(states))
    ),
}


def shown(ranked: Sequence[tuple[Any, float]]) -> Sequence[tuple[Any, float]]:
    """The first pair (name, probability), and those of the next pairs whose probability is at least SHOWN."""
    return [*ranked[:1], *(pair for pair in ranked[1:] if pair[1] >= SHOWN)]


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("-n", type=positive, default=10, help="number of states")
    parser.add_argument("--words", type=positive, default=8, help="most words per state; tables omit those below 1 %%")
    parser.add_argument("--measures", action="store_true", help="show state usage and entropies on a text instead")
    add_corpus(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    if not args.measures:
        rows = [state._asdict() for state in load(args.model, None, args.device).states(args.n, args.words)]
        return Answer(rows, [Table("most informative states", rows, SUMMARIES)])
    from trellis.families.hmm.model import HMM
    from trellis.families.hmm.states import measure_states
    from trellis.tasks.lm import load_split, reading_of

    model = load(args.model, HMM, args.device)
    facts = measure_states(model, reading_of(model)(load_split(model, args.data, args.split)))._asdict()
    return Answer(facts, [Facts(facts)])
