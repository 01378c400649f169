"""Options as dataclass fields: each carries its documentation, its choices and its range, and is checked by them."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args, get_type_hints

from trellis.errors import TrellisError

T = TypeVar("T")
TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
Tables = Mapping[str, Any]  # of TOML


@dataclass(frozen=True)
class Option:
    """What is known of an option besides its type and default."""

    doc: str
    choices: tuple[str, ...] = ()
    within: str = ""  # an interval, as in "[0, 1)"
    was: str = ""  # the dotted key that it had in an older version
    renamed: Mapping[str, str] = field(default_factory=dict)  # old values and their names now

    def check(self, value: Any, name: str) -> None:
        """Refuse a value that is not among the choices, or outside the range."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            if value in self.renamed:
                raise TrellisError(f"{name} = {value!r} is now called {self.renamed[value]!r}.")
            raise TrellisError(f"{name} is {value!r}, which is not known{suggestion(value, self.choices)}")
        if self.within and not inside(value, self.within):
            raise TrellisError(f"{name} is {value}: it must be {phrase(self.within)}.")


def option(
    default: Any,
    doc: str,
    *,
    choices: Iterable[str] = (),
    within: str = "",
    was: str = "",
    renamed: Mapping[str, str] | None = None,
) -> Any:
    """A dataclass field that is an option of a run."""
    about = Option(doc, tuple(choices), within, was, renamed or {})
    return field(default=default, metadata={"option": about})


@dataclass(frozen=True)
class Options:
    """A table of options, each checked where one is made."""

    prefix: ClassVar[str] = ""  # the table's name and a dot, for messages

    def __post_init__(self) -> None:
        for one, about in options_of(self):
            about.check(getattr(self, one.name), self.prefix + one.name)


def ends(within: str) -> tuple[float, float]:
    low, high = within[1:-1].split(",")
    return float(low), float(high)


def inside(value: float, within: str) -> bool:
    """Whether a number lies in an interval."""
    low, high = ends(within)
    above = value >= low if within[0] == "[" else value > low
    return above and (value <= high if within[-1] == "]" else value < high)


def phrase(within: str) -> str:
    """An interval in words, where it has only a lower end."""
    low, high = ends(within)
    if high < math.inf:
        return f"in {within}"
    return f"{'at least' if within[0] == '[' else 'above'} {low:g}"


def options_of(cls: Any) -> Iterator[tuple[Field[Any], Option]]:
    """The fields of a dataclass that are options."""
    return ((one, one.metadata["option"]) for one in fields(cls) if "option" in one.metadata)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    choices = list(known)
    nearest = difflib.get_close_matches(str(name), choices, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(choices)}."


def choose(options: Mapping[str, T], name: str, what: str) -> T:
    """The option of that name; one sentence about which there are where it is not one of them."""
    if name not in options:
        raise TrellisError(f"{what} is {name!r}, which is not known{suggestion(name, options)}")
    return options[name]


def build(cls: type[T], table: Any, where: str = "", renamed: Mapping[str, str] | None = None, owner: str = "") -> T:
    """An instance of a config dataclass from a table, every key and value checked.

    `renamed` are old keys, `owner` completes a message about unknown ones."""
    if not isinstance(table, Mapping):
        raise TrellisError(f"{where.rstrip('.')} must be a table, not {table!r}.")
    hints, renamed = get_type_hints(cls), renamed or {}
    types = {one.name: hints[one.name] for one in fields(cast(Any, cls))}
    for key in table:
        if where + key in renamed:
            raise TrellisError(f"The key {where + key!r} is now {renamed[where + key]!r}.")
        if key not in types:
            raise TrellisError(f"Unknown key {where + key!r}{owner}{suggestion(key, types)}")
    return cls(**{key: _checked(types[key], value, where + key) for key, value in table.items()})


def _checked(kind: Any, value: Any, where: str) -> Any:
    """The value as the type that a field asks for; an integer will do for a float, and nothing else is converted."""
    if get_args(kind):  # an optional field: X | None
        return None if value is None else _checked(get_args(kind)[0], value, where)
    if is_dataclass(kind) or kind is Any:
        return value if kind is Any or is_dataclass(value) else build(cast(type, kind), value, where + ".")
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise TrellisError(f"{where} must be {TYPE_NAMES[kind]}, not {value!r}.")
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TrellisError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise TrellisError(f"{path}: {error}") from error


def read_options(path: str | Path, kind: type[T]) -> T:
    """Read what a dataclass describes from a TOML file."""
    try:
        return build(kind, read_toml(path))
    except TrellisError as error:
        raise TrellisError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def apply_overrides(config: T, overrides: Iterable[str]) -> T:
    """The same options with some values replaced, each given as "section.key=value"."""
    tables: dict[str, Any] = asdict(cast(Any, config))
    for keys, text in map(split_override, overrides):
        put(tables, keys, toml_value(text, type_of(type(config), keys)))
    return build(type(config), tables)


def split_override(override: str) -> tuple[list[str], str]:
    """The keys and the value of "section.key=value"."""
    key, equals, text = override.partition("=")
    if not equals:
        raise TrellisError(f"Override {override!r} has no '='; write it as section.key=value.")
    return key.strip().split("."), text


def put(tables: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a value in nested tables."""
    table: Any = tables
    for key in keys[:-1]:
        table = table.setdefault(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise TrellisError(f"The key {'.'.join(keys)!r} does not name a section and an option.")
    table[keys[-1]] = value


def type_of(kind: Any, path: list[str]) -> Any:
    """The type of the field of a dataclass that a path of keys leads to; None where it leads nowhere."""
    for key in path:
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    return kind


def toml_value(text: str, kind: Any) -> Any:
    """A value written on the command line, in TOML; what is to be a string, or is not TOML, stays a string."""
    if str in (kind, *get_args(kind)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: Any, comments: bool = False) -> str:
    """A dataclass as TOML text; with `comments` every option is preceded by what it does."""
    lines = [line for one in fields(config) if not is_dataclass(getattr(config, one.name))
             for line in _toml_lines(config, one, comments)]  # fmt: skip
    for one in fields(config):
        inner = getattr(config, one.name)
        if is_dataclass(inner):
            lines += ["", f"[{one.name}]", *(line for f in fields(inner) for line in _toml_lines(inner, f, comments))]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_lines(config: Any, one: Field[Any], comments: bool) -> list[str]:
    value, about = getattr(config, one.name), one.metadata.get("option")
    text = [f"# {_describe(about)}"] if comments and about else []
    if value is None:
        return [*text, f"# {one.name} ="] if comments else []
    return [*text, f"{one.name} = {_as_toml(value)}"]


def _describe(about: Option) -> str:
    notes = (
        [" | ".join(filter(None, about.choices))] if about.choices else [phrase(about.within)] if about.within else []
    )
    return "; ".join([about.doc, *notes])


def _as_toml(value: str | float | bool) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
