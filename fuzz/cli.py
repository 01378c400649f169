"""The command line: random arguments of every command, in this process and, for every fiftieth case, in a new one."""

from __future__ import annotations

import argparse
import io
import logging
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any

import trellis
from fuzz.harness import EXIT_CODES, SLOW, FindingError, complaint
from fuzz.mutations import STRINGS, any_number, any_text
from fuzz.small import TAGGED, TEXT, WORDS, model
from trellis.cli.main import build_parser, find_commands, main
from trellis.errors import TrellisError

SOURCE = str(Path(trellis.__file__).parents[1])
NEW_PROCESS = 50  # one case in so many
SETS = ["train.epochs", "train.max_steps", "train.lr", "model.states", "model.dim", "model.band", "model.features",
        "batches.lanes", "batches.window", "batches.tokens", "data.min_count", "data.max_size", "data.valid_fraction",
        "seed", "model.params", "model.emission", "train.learner", "eval.ngram", "model.order", "x"]  # fmt: skip
VALUES = ["table", "neural", "lowrank", "brown", "em", "gradient", "1", "2"]
QUICK = ["--device", "cpu", "--set", "train.epochs=1", "--set", "train.max_steps=2", "--set", "data.min_count=1"]
SERVERS = {"explore"}  # runs until it is interrupted; fuzz/explore.py asks its server


class Target:
    """Run commands on a small text and small models."""

    def __init__(self, folder: Path) -> None:
        (folder / "text.txt").write_text(TEXT)
        (folder / "tagged.conll").write_text("\n".join("".join(f"{w} {t}\n" for w, t in line) for line in TAGGED))
        (folder / "empty").write_text("")
        (folder / "binary").write_bytes(bytes(range(256)) * 4)
        (folder / "run.toml").write_text("[model]\nstates = 2\n")
        for name in ("hmm", "lds", "ngram", "crf", "hmm-tagger"):
            model(name).save(folder / name)
        self.paths = ["text.txt", "tagged.conll", "empty", "binary", "run.toml", "hmm", "lds", "ngram", "crf",
                      "hmm-tagger", "missing", ".", "/dev/null", "x.svg", "x.npz", "x.tsv", "demo"]  # fmt: skip
        choices = next(a for a in build_parser(find_commands())._actions if isinstance(a, argparse._SubParsersAction))
        parsers = {name: parser for name, parser in choices.choices.items() if name not in SERVERS}
        self.parsers: dict[str, argparse.ArgumentParser] = parsers
        self.number = 0

    def honest(self) -> None:
        in_process(["train", "--data", "text.txt", "--run", "honest", "--states", "4", *QUICK])
        in_process(["sample", "hmm", "-n", "1000"])
        in_process(["infill", "hmm", "the ___ sees", "--samples", "100"])
        in_process(["eval", "hmm", "--data", "text.txt", "--split", "all"])
        in_process(["cluster", "text.txt", "-c", "2"])

    def case(self, random: Random) -> None:
        words = self.line(random)
        stdin = any_text(random, WORDS, 30).encode(errors="surrogatepass")
        if random.randrange(NEW_PROCESS) == 0:
            new_process(words, stdin, random.random() < 0.2)
        else:
            in_process(words, stdin)

    def line(self, random: Random) -> list[str]:
        """A command with some of its arguments, most of them valid."""
        name = random.choice(sorted(self.parsers))
        parser, words = self.parsers[name], [name]
        words += ["--data", "text.txt"] if name in ("train", "eval") else []  # unless another one follows
        while subs := [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]:
            name = random.choice(sorted(subs[0].choices))
            parser, words = subs[0].choices[name], [*words, name]
        for action in parser._actions:
            if action.dest != "help" and (not action.option_strings or action.required or random.random() < 0.25):
                words += self.argument(action, random)
        if "train" in words:
            words += ["--run", f"run{random.randrange(3)}", *QUICK]
        if random.random() < 0.05:
            words.insert(random.randint(0, len(words)), random.choice(STRINGS))
        return [word.replace("\0", "") for word in words]

    def argument(self, action: argparse.Action, random: Random) -> list[str]:
        option = action.option_strings[-1:]
        if action.nargs == 0:
            return [*option]
        if action.dest == "set":
            return [*option, f"{random.choice(SETS)}={random.choice([any_number(random), random.choice(VALUES)])}"]
        if random.random() < 0.03:
            return [*option, random.choice(STRINGS)]
        if action.choices:
            return [*option, str(random.choice([*action.choices]))]
        if action.dest == "model" and not option:
            return [random.choice(["hmm", "hmm", "hmm", "lds", "crf", random.choice(self.paths)])]
        if action.dest == "text":
            return [any_text(random, [*WORDS, "___"], 6).replace("\n", " ") for _ in range(random.randint(0, 2))]
        if action.type not in (None, Path) or action.dest in ("states", "mix", "budget"):
            return [*option, random.choice([any_number(random), str(random.randint(1, 4))])]
        if action.type is Path or action.dest in ("data", "corpus", "input", "output", "models"):
            return [*option, random.choice(self.paths)]
        return [*option, any_text(random, WORDS, 3)]


def check(code: object, err: str, words: list[str]) -> None:
    """Raise a finding unless a command ended in an answer or in one sentence."""
    if "Traceback (most recent call last)" in err or code not in EXIT_CODES:
        raise FindingError(f"{words!r} ended with {code}: {err[-300:]}")
    last = err.strip().splitlines()[-1:]
    if code == 2 and (not last or complaint(last[0])):
        raise FindingError(f"{words!r}: {complaint(last[0]) if last else 'no message'}: {err[-200:]!r}")
    if code == 2:
        raise TrellisError(last[0])


def in_process(words: list[str], stdin: bytes = b"") -> None:
    out, err, kept = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(words)
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdin = kept
        logging.getLogger().handlers.clear()
    check(code, err.getvalue(), words)


def new_process(words: list[str], stdin: bytes, closed: bool) -> None:
    """A real process; with `closed`, nobody reads its standard output."""
    command = [sys.executable, "-m", "trellis", *words]
    with (
        suppress(ValueError, OSError),
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCE},
        ) as process,
    ):
        if closed and process.stdout:
            process.stdout.close()
            process.stdout = None
        try:
            _, err = process.communicate(stdin, timeout=10 * SLOW)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise FindingError(f"{words!r} did not end within {error.timeout:.0f} seconds") from error
        except BaseException:
            process.kill()
            raise
        check(process.returncode, err.decode(errors="replace"), words)
