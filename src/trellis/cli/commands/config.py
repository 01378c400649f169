"""trellis config"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from trellis.cli.console import Answer, Lines
from trellis.config import BatchConfig, EvalConfig, RunConfig
from trellis.options import to_tables, to_toml
from trellis.registry import FAMILIES, find_family

SUMMARY = "print a family's options and defaults as TOML"
EXAMPLE = "trellis config hmm > run.toml"
HEAD = """# Options

This page lists all options of a run, by section of its TOML file. On the command line, `--set section.key=value` sets
an option; in Python, pass it to `trellis.train(..., key=value)`. `trellis config FAMILY` prints the options of one
family as a TOML file.

A default of – means that the value depends on the data or on the family. Some meanings begin with names and a colon,
such as "brown:" or "neural, nested:". These options have an effect only with the named values of other options, here
`emission = "brown"` or `params = "neural"`, or only with the named readers, learners or schedules.

This page is generated: `trellis config --markdown > docs/options.md`."""
SECTIONS = {"data": "data", "model": "config", "train": "train"}  # the sections, and the part of a family for each


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", nargs="?", default="hmm", help=f"{', '.join(FAMILIES)} (default hmm)")
    parser.add_argument("--markdown", action="store_true", help="print the options of all families as a page")


def run(args: argparse.Namespace) -> Answer:
    if args.markdown:
        lines = list(page())
        return Answer("\n".join(lines), [Lines(lines)])
    defaults = RunConfig(model=find_family(args.family).load("config")()).with_usual()
    return Answer(to_tables(defaults), [Lines(to_toml(defaults, comments=True).splitlines())])


def page() -> Iterator[str]:
    """The options of all families as Markdown; families with the same options share a table."""
    yield from HEAD.splitlines()
    yield from table("The run", RunConfig)
    yield from table("`[batches]`", BatchConfig)
    yield from table("`[eval]`", EvalConfig)
    for section, part in SECTIONS.items():
        kinds: dict[Any, list[str]] = {}
        for name in FAMILIES:
            kinds.setdefault(find_family(name).load(part), []).append(name)
        for kind, names in kinds.items():
            yield from table(f"`[{section}]` of {', '.join(f'`{name}`' for name in names)}", kind)
    yield from usual_options()


def usual_options() -> Iterator[str]:
    """The defaults that are different for some families, as Markdown."""
    yield from ("", "## Other defaults")
    for name in FAMILIES:
        run = RunConfig(model=find_family(name).load("config")())
        usual = run.model.usual(learner := run.train.learner)
        if usual:
            shown = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in usual.items())
            yield from ("", f'With `model.family = "{name}"` and `train.learner = "{learner}"`: {shown}.')


def table(title: str, kind: Any) -> Iterator[str]:
    """A heading, and a row for every option of a dataclass."""
    rows = [(one.name, one.default, one.metadata["option"]) for one in fields(kind) if "option" in one.metadata]
    yield from (
        ("", f"## {title}", "", "| key | default | allowed values | meaning |", "|---|---|---|---|") if rows else ()
    )
    for name, default, about in rows:
        shown = "–" if default in (None, "") else f"`{json.dumps(default, ensure_ascii=False)}`"
        yield f"| `{name}` | {shown} | {escaped(about.allowed)} | {escaped(about.doc)} |"


def escaped(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "\\<")
