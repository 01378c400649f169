"""`python -m benchmarks NAME [options]`: run one benchmark, or `all`; without a name, list them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks import report


def names() -> list[str]:
    """The modules of this package that have a `main(argv)`."""
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    return [name for name in found if hasattr(importlib.import_module(f"benchmarks.{name}"), "main")]


def run(name: str, argv: list[str]) -> None:
    importlib.import_module(f"benchmarks.{name}").main(argv)
    report.table()


def main() -> None:
    chosen, argv = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    module = chosen.replace("-", "_")
    known = names()
    if module == "all":
        for name in known:
            run(name, argv)
    elif module in known:
        run(module, argv)
    else:
        listed = "\n".join(f"  {name.replace('_', '-'):10} {describe(name)}" for name in known)
        print(f"python -m benchmarks NAME [options]; NAME is all, or one of\n{listed}", file=sys.stderr)
        sys.exit(2 if chosen else 0)


def describe(name: str) -> str:
    """The first line of a benchmark's docstring."""
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    main()
