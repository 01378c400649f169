"""trellis completion"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from trellis.cli.console import Answer, Lines
from trellis.registry import families

SUMMARY = "print a shell completion script"
EXAMPLE = "trellis completion bash > ~/.trellis.bash; source ~/.trellis.bash"
SHELLS = "bash", "zsh", "fish"
FAMILY = ("train", "--model"), ("config", "family")  # arguments that name a family


class Command(NamedTuple):
    """The words that complete a command, such as "tag train"."""

    name: str
    summary: str
    options: dict[str, str]  # with their help
    values: dict[str, list[str]]  # the values of some options
    words: list[str]  # subcommands, and the values of positional arguments


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="your shell; load the script from its start-up file")


def run(args: argparse.Namespace) -> Answer:
    from trellis.cli.main import build_parser, find_commands

    found = list(describe(build_parser(find_commands())))
    lines = list({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](found))
    return Answer("\n".join(lines), [Lines(lines)])


def describe(parser: argparse.ArgumentParser, name: str = "", summary: str = "") -> Iterator[Command]:
    """A command and its subcommands, by the arguments of their parsers."""
    options: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    words, inner = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {one.dest: one.help or "" for one in action._choices_actions}
            inner += [(sub, f"{name} {key}".strip(), about.get(key, "")) for key, sub in action.choices.items()]
            words += [*action.choices]
            continue
        for flag in action.option_strings or [action.dest]:
            known = [*families()] if (name, flag) in FAMILY else [str(value) for value in action.choices or ()]
            if action.option_strings:
                options[flag], values[flag] = action.help or "", known
            else:
                words += known
    yield Command(name, summary, options, {flag: known for flag, known in values.items() if known}, words)
    for sub in inner:
        yield from describe(*sub)


def bash(found: list[Command]) -> Iterator[str]:
    """A bash script: the longest command that matches the line determines the words offered, besides file names."""
    yield "_trellis() {"
    yield '  local words="" values="" previous="${COMP_WORDS[COMP_CWORD-1]}" line="${COMP_WORDS[*]:1:COMP_CWORD-1} "'
    yield '  case "$line" in'
    for one in sorted(found, key=lambda one: -len(one.name)):
        yield f"    {one.name and quoted(one.name + ' ')}*) words={quoted(' '.join([*one.words, *one.options]))}"
        cases = " ".join(f"{flag}) values={quoted(' '.join(known))} ;;" for flag, known in one.values.items())
        yield f'      case "$previous" in {cases} esac ;;' if cases else "      ;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "${values:-$words}" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _trellis trellis"


def zsh(found: list[Command]) -> Iterator[str]:
    """The script for zsh: that for bash, run by zsh's emulation of bash completion."""
    yield "autoload -U +X compinit && compinit"
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from bash(found)


def fish(found: list[Command]) -> Iterator[str]:
    for one in found:
        seen = " ".join(f"; and __fish_seen_subcommand_from {word}" for word in one.name.split())[6:]
        condition = quoted(seen or "__fish_use_subcommand")
        for sub in (sub for sub in found if sub.name and sub.name.split()[:-1] == one.name.split()):
            yield f"complete -c trellis -f -n {condition} -a {sub.name.split()[-1]} -d {quoted(sub.summary)}"
        names = {sub.name.split()[-1] for sub in found if sub.name}
        for word in (word for word in one.words if word not in names):
            yield f"complete -c trellis -n {condition} -a {word}"
        for flag, about in one.options.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            known = one.values.get(flag)
            value = f" -x -a {quoted(' '.join(known))}" if known else ""
            yield f"complete -c trellis -n {condition} {name}{value} -d {quoted(about)}"


def quoted(text: str) -> str:
    """The text in single quotes, for any of the shells."""
    return "'" + text.replace("'", "’") + "'"
