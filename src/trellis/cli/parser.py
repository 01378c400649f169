"""The command line: each command is a thin function from arguments to an answer, shown as text or as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trellis import __version__
from trellis.cli import tag_arguments
from trellis.config import RunConfig
from trellis.errors import TrellisError
from trellis.progress import set_quiet
from trellis.registry import FAMILIES, resolve


class Command(NamedTuple):
    """One command: what runs, how it reads in --help, and the arguments it takes."""

    run: str  # module:function in trellis.cli, (argparse.Namespace) -> Answer
    summary: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]


def positive(text: str) -> int:
    """A whole number of one or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of one or more")
    return int(text)


def seed(text: str) -> int:
    """A seed for a 64-bit generator."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2^63 - 1")
    return int(text)


def train_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = RunConfig()
    parser.add_argument("config", nargs="?", type=Path, help="a run as TOML; what it leaves out keeps its default")
    parser.add_argument("--model", metavar="NAME", help=f"family of models (default {defaults.model.family})")
    parser.add_argument("--data", metavar="NAME|PATH", help=f"corpus (default {defaults.data.source}); - reads stdin")
    parser.add_argument("--states", type=positive, help=f"hidden states (default {defaults.model.states})")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="any other value of the run")
    parser.add_argument("--run", type=Path, metavar="DIR", help="where to write (default runs/DATA-MODEL)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    device_choice(parser, None)
    parser.add_argument("--seed", type=seed, help="of everything random (default 0)")


def device_choice(parser: argparse.ArgumentParser, default: str | None = "auto") -> None:
    parser.add_argument("--device", default=default, help="auto (the GPU where there is one), cpu or cuda")


def model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a model file, or the folder of a finished run")


def text_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="NAME|PATH", help="corpus (default: the one the model was trained on)")
    parser.add_argument("--split", help="train, valid, test or all (default: test; all of a file without splits)")


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model files or run folders")
    text_choice(parser)
    device_choice(parser)
    parser.add_argument("--interpolate", action="store_true", help="mix the models too, with weights fitted on valid")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw perplexity by frequency and by position")
    parser.add_argument("-n", type=positive, default=5, help="contexts to show where one model loses most (default 5)")


def sample_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    device_choice(parser)
    parser.add_argument("-n", type=positive, default=1, help="how many sentences")
    parser.add_argument("--max-tokens", type=positive, default=100, help="of one sentence")
    parser.add_argument("--seed", type=seed, default=0)


def text_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    device_choice(parser)
    parser.add_argument("text", nargs="*", help="sentences; none reads them from standard input, one a line")


def score_arguments(parser: argparse.ArgumentParser) -> None:
    text_arguments(parser)
    parser.add_argument("--tokens", action="store_true", help="show log p of every token as well")


def infill_arguments(parser: argparse.ArgumentParser) -> None:
    text_arguments(parser)
    parser.add_argument("-n", type=positive, default=10, help="words to show for each gap")
    parser.add_argument("--samples", type=positive, default=3, help="completions to draw")
    parser.add_argument("--complete", action="store_true", help="the sentence ends where the text ends")
    parser.add_argument("--seed", type=seed, default=0)


def embed_arguments(parser: argparse.ArgumentParser) -> None:
    text_arguments(parser)
    parser.add_argument("--what", metavar="KIND", help="posterior (default), filtered or viterbi; of an lds smoothed "
                        "(default), filtered or type; of a network type")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, help="write float32 rows, a token each, to this .npy, .txt, .vec "
                        "(word2vec) or .safetensors file")  # fmt: skip


def neighbours_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("text", help="a sentence")
    parser.add_argument("--word", required=True, help="the word in it")
    parser.add_argument("-n", type=positive, default=10, help="how many neighbours")


def dynamics_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("-n", type=positive, default=10, help="how many pairs")
    parser.add_argument("--words", type=positive, default=9, help="words to show of each side")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw them")


def states_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("-n", type=positive, default=10, help="how many states")
    parser.add_argument("--words", type=positive, default=8, help="words to show for each")
    parser.add_argument("--measures", action="store_true", help="instead: how many states a text uses, and entropies")
    text_choice(parser)
    device_choice(parser)


def export_arguments(parser: argparse.ArgumentParser) -> None:
    model_argument(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--to", choices=("numpy", "hmmlearn", "arpa"), help="format (default numpy, of an n-gram arpa)")


def cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", nargs="?", metavar="NAME|PATH", help="the text; of a corpus with splits, train")
    parser.add_argument("-c", "--classes", type=positive, help="how many classes")
    parser.add_argument("-o", "--output", type=Path, help="write path<TAB>word<TAB>count lines to this file")
    parser.add_argument(
        "--show", nargs="?", const="", metavar="FILE", help="print the classes, or those of a paths file"
    )
    parser.add_argument("--top", type=positive, default=10, help="words to show of each class")
    parser.add_argument("--method", default="exchange", choices=("exchange", "agglomerative"))
    parser.add_argument("--cloned", action="store_true", help="every word a class of its own")
    parser.add_argument("--set", action="append", default=[], metavar="data.x=y", help="how the text is read")
    parser.add_argument(
        "--alone",
        action="append",
        default=[],
        metavar="WORD",
        help="a word that keeps a class to itself; may be given again",
    )
    parser.add_argument("--max-class-size", type=positive, help="most words in a class")
    parser.add_argument("--min-count", type=positive, default=1, help="rarer words share one class")
    parser.add_argument("--seed", type=seed, default=0)


def config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", nargs="?", default="hmm", help=f"{', '.join(FAMILIES)} (default hmm), or another's")


def cache_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove every entry")


COMMANDS = {
    "train": Command(
        "commands:train", "train a model and measure it",
        "trellis train --data ptb --states 256 --set train.learner=em --run runs/ptb", train_arguments,
    ),
    "eval": Command(
        "commands:evaluate", "models side by side on a corpus: perplexity, and where it comes from",
        "trellis eval runs/ptb runs/ptb-bigram --data ptb --interpolate --plot ptb.svg", eval_arguments,
    ),
    "sample": Command("commands:sample", "draw sentences", "trellis sample runs/demo -n 3 --seed 1", sample_arguments),
    "score": Command(
        "commands:score", "log-probability of sentences", "trellis score runs/demo < sentences.txt", score_arguments
    ),
    "infill": Command(
        "commands:infill", "complete sentences with gaps, exactly",
        'trellis infill runs/demo "the function ___ a list"', infill_arguments,
    ),
    "embed": Command(
        "vectors:embed", "features of every token", "trellis embed runs/demo -o features.npy < text", embed_arguments
    ),
    "states": Command(
        "commands:states", "what the states have learned", "trellis states runs/demo -n 20", states_arguments
    ),
    "neighbours": Command(
        "vectors:neighbours", "words near a word in its context, by the vectors of an lds",
        'trellis neighbours runs/lds "the bank of the river" --word bank', neighbours_arguments,
    ),
    "dynamics": Command(
        "vectors:dynamics", "what an lds moves to what: singular vector pairs of its transition",
        "trellis dynamics runs/lds -n 20", dynamics_arguments,
    ),
    "info": Command("commands:info", "what a model is", "trellis info runs/demo --json", model_argument),
    "export": Command(
        "commands:export", "a model as NumPy arrays, as an hmmlearn model, or in the ARPA format",
        "trellis export runs/demo -o model.npz", export_arguments,
    ),
    "config": Command(
        "configure:config", "the options of a family, with their defaults, as TOML",
        "trellis config hmm > run.toml", config_arguments,
    ),
    "cluster": Command(
        "commands:cluster", "Brown clusters of the words of a corpus",
        "trellis cluster ptb -c 128 -o paths.txt; trellis cluster --show paths.txt", cluster_arguments,
    ),
    "tag": Command(
        "commands:tag", "taggers: train, eval, apply",
        "trellis tag train --data conll2003 --with brown:paths.txt --run runs/ner; trellis tag eval runs/ner "
        "--data conll2003", tag_arguments.arguments,
    ),
    "cache": Command("commands:cache", "show or clear the encoded corpora", "trellis cache --clear", cache_arguments),
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser("trellis", description="Exact latent-state models of discrete sequences.")
    parser.add_argument("--version", action="version", version=f"trellis {__version__}")
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = choices.add_parser(name, help=command.summary, description=command.summary.capitalize() + ".",
                                 epilog=f"example: {command.example}")  # fmt: skip
        command.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the answer as JSON")
        sub.add_argument("--quiet", action="store_true", help="no progress, no log")
    return parser


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments of a command; sentences may also come after its options."""
    parser = build_parser()
    args, more = parser.parse_known_args(argv)
    if more and (not isinstance(getattr(args, "text", None), list) or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        args.text += more
    return args


def main(argv: list[str] | None = None) -> None:
    """Run one command; what the user can put right ends in one sentence and exit code 2."""
    args = parse(argv)
    logging.basicConfig(format="%(message)s", level=logging.ERROR if args.quiet else logging.INFO)
    set_quiet(args.quiet)
    try:
        answer = resolve(f"trellis.cli.{COMMANDS[args.command].run}")(args)
        if args.json:
            print(json.dumps(finite(answer.data), ensure_ascii=False))
        else:
            answer.show()
        sys.stdout.flush()
    except TrellisError as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"The system refused: {error}.", 2)
    sys.exit(answer.exit_code)


def finite(value: Any) -> Any:
    """The same JSON value with null for what JSON cannot say: infinities and NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def fail(sentence: str, code: int) -> None:
    print(f"trellis: {sentence}", file=sys.stderr)
    sys.exit(code)
