"""`python -m benchmarks NAME [options]`: run one benchmark, or `all`; without a name, list them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks
from benchmarks import report


def names() -> list[str]:
    """The modules of this package that have a `main(argv)`. None is imported: each has requirements of its own."""
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]
    return [name for name in found if "\ndef main(" in source(name)]


def source(name: str) -> str:
    return Path(benchmarks.__path__[0], f"{name}.py").read_text(encoding="utf-8")


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
    return (ast.get_docstring(ast.parse(source(name))) or "").splitlines()[0]


if __name__ == "__main__":
    main()
