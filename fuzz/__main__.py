"""`python -m fuzz NAME [--seed S] [--seconds N] [--cases N]`: fuzz one target, or `all`; without a name, list them."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import fuzz

TOOLS = {"__main__", "asgi", "harness", "mutations", "small"}


def names() -> list[str]:
    """The targets: modules with a class `Target`."""
    return [module.name for module in pkgutil.iter_modules(fuzz.__path__) if module.name not in TOOLS]


def describe(name: str) -> str:
    return (importlib.import_module(f"fuzz.{name}").__doc__ or "").splitlines()[0]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m fuzz", description="Fuzz a target; prints one JSON line for each.")
    parser.add_argument("name", nargs="?", help=f"all, {', '.join(names())}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit; for all, of all targets together")
    parser.add_argument("--cases", type=int, default=10_000, help="maximum number of cases of a target")
    parser.add_argument("--jobs", type=int, default=2, help="all: targets at a time (default 2)")
    parser.add_argument("--case", type=int, help="run this case alone, and print its error")
    args = parser.parse_args()
    if args.name not in (None, "all", *names()):
        parser.error(f"{args.name!r} is not a target: choose all or one of {', '.join(names())}")
    return args


def main() -> int:
    args = parse()
    if args.name is None:
        print("\n".join(f"{name:12} {describe(name)}" for name in names()))
        return 0
    if args.name == "all":
        return every_target(args)
    from fuzz.harness import replay, run

    target = importlib.import_module(f"fuzz.{args.name}").Target
    if args.case is not None:
        return replay(args.name, target, args.seed, args.case)
    return run(args.name, target, args.seed, args.seconds, args.cases)


def every_target(args: argparse.Namespace) -> int:
    """Each target in a process of its own, `--jobs` at a time."""
    seconds = args.jobs * args.seconds / len(names())
    options = ["--seed", str(args.seed), "--seconds", str(seconds), "--cases", str(args.cases)]

    def run(name: str) -> int:
        return subprocess.run([sys.executable, "-m", "fuzz", name, *options], check=False).returncode

    with ThreadPoolExecutor(args.jobs) as pool:
        return max(pool.map(run, names()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
