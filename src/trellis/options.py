"""Options as dataclass fields, each with its documentation, choices and range, validated on construction."""

import difflib
import json
import math
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args, get_type_hints

from trellis.errors import TrellisError
from trellis.extensions import entries

T = TypeVar("T")
AUTO = "auto"
DIGITS = 18  # of an integer of 64 bits
LARGEST, LARGE = 2**63 - 1, 1000  # of an integer; an upper bound that documentation need not mention
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = SHOWN.maxlong = 80
TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
RENAMED = {  # former names of families, options and values
    "tag-hmm": "hmm-tagger",
    "scalar": "table",
    "alone": "singletons",
    "shares": "class_sizes",
    "live": "states_per_word",
    "characters": "spelling",
    "spread": "init_std",
    "common": "min_kind",
    "backing": "backoff",
    "begin": "init",
    "words": "max_words",
    "start": "init_from",
    "crossing": "cross_sentences",
    "crf": "train",
}


@dataclass(frozen=True)
class Option:
    """The metadata of an option besides its type and default."""

    doc: str
    choices: tuple[str, ...] = ()
    within: str = ""  # an interval, as in "[0, 1)"
    group: str = ""  # a group of entry points whose names are choices too, see `trellis.extensions`
    auto: bool = False  # whether "auto" may be written for zero

    def check(self, value: Any, name: str) -> None:
        """Raise if a value is not among the choices or is out of range."""
        if value is None:
            return
        if self.choices and value not in self.choices and value not in self.added:
            if RENAMED.get(value) in self.choices:
                raise TrellisError(f"{name} = {value!r} is now called {RENAMED[value]!r}.")
            known = filter(None, (*self.choices, *self.added))
            raise TrellisError(f"{name} is {shown(value)}, which is not recognised{suggestion(value, known)}")
        if self.within and not inside(value, self.within):
            finite = isinstance(value, int) or math.isfinite(value)
            wanted = bound(value, self.within) if finite else "a finite number"
            raise TrellisError(f"{name} is {value}: it must be {wanted}.")

    @property
    def added(self) -> tuple[str, ...]:
        """The choices that other packages add."""
        return tuple(entries(self.group)) if self.group else ()

    @property
    def allowed(self) -> str:
        """The choices or the range, as text; empty if there is neither."""
        choices = " | ".join(filter(None, (*self.choices, *self.added)))
        return choices or (self.within and phrase(self.within))


def option(
    default: Any, doc: str, *, choices: str | Iterable[str] = (), within: str = "", group: str = "", auto: bool = False
) -> Any:
    """A dataclass field that is an option of a run; choices may be one string, separated by spaces."""
    names = choices.split() if isinstance(choices, str) else choices
    return field(default=default, metadata={"option": Option(doc, tuple(names), within, group, auto)})


@dataclass(frozen=True)
class Options:
    """A table of options, each validated on construction."""

    prefix: ClassVar[str] = ""  # the table's name and a dot, for error messages

    def __post_init__(self) -> None:
        for one in fields(self):
            if "option" in one.metadata:
                one.metadata["option"].check(getattr(self, one.name), self.prefix + one.name)


def inside(value: float, within: str) -> bool:
    """Whether a number lies in an interval."""
    low, high = map(float, within[1:-1].split(","))
    return low < value < high or (value == low and within[0] == "[") or (value == high and within[-1] == "]")


def phrase(within: str) -> str:
    """An interval as text, such as "in [0, 1)". If only the lower bound matters, "at least 1"."""
    low, high = within[1:-1].split(", ")
    return f"in {within}" if float(high) < LARGE else f"{'at least' if within[0] == '[' else 'above'} {low}"


def bound(value: float, within: str) -> str:
    """The condition that a value outside an interval violates, as text."""
    high = within[1:-1].split(", ")[1]
    return f"at most {high}" if value > float(high) >= LARGE else phrase(within)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the most similar valid name, or all of them."""
    choices = list(known)
    nearest = difflib.get_close_matches(str(name), choices, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; choose from {', '.join(choices)}."


def choose(options: Mapping[str, T], name: str, what: str) -> T:
    """Look up an option by name; raises with the valid names if it is unknown."""
    if name not in options:
        raise TrellisError(f"{what} is {shown(name)}, which is not recognised{suggestion(name, options)}")
    return options[name]


def build(cls: type[T], table: Any, where: str = "", owner: str = "") -> T:
    """Build a config dataclass from a table, checking every key and value. The text `owner` ends error messages
    about keys."""
    if not isinstance(table, Mapping):
        raise TrellisError(f"{where.rstrip('.')} must be a table, not {shown(table)}.")
    hints = get_type_hints(cls)
    types = {one.name: hints[one.name] for one in fields(cast(Any, cls)) if one.compare}
    zeros = {one.name for one in fields(cast(Any, cls)) if "option" in one.metadata and one.metadata["option"].auto}
    table = {key: 0 if key in zeros and value == AUTO else value for key, value in table.items()}
    for key in table:
        if key not in types and RENAMED.get(key) in types:
            raise TrellisError(f"The key {where + key!r} is now {where + RENAMED[key]!r}.")
        if key not in types:
            raise TrellisError(f"Unknown key {shown(where + key)}{owner}{suggestion(key, types)}")
    for key, value in table.items():
        if key in zeros and type(value) is not int:
            raise TrellisError(f"{where + key} must be an integer or {AUTO}, not {shown(value)}.")
    return cls(**{key: _checked(types[key], value, where + key) for key, value in table.items()})


def _checked(kind: Any, value: Any, where: str) -> Any:
    """Check a value against a field's type; an integer is accepted for a float, nothing else is converted."""
    if get_args(kind):  # an optional field: X | None
        return None if value is None else _checked(get_args(kind)[0], value, where)
    if is_dataclass(kind) or kind is Any:
        return value if kind is Any or is_dataclass(value) else build(cast(type, kind), value, where + ".")
    if type(value) is int and kind in (int, float) and abs(value) > LARGEST:
        raise TrellisError(
            f"{where} is a number of {value.bit_length()} bits, which is too large; use at most 63 bits."
        )
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise TrellisError(f"{where} must be {TYPE_NAMES[kind]}, not {shown(value)}.")
    return value


def whole(text: str) -> int | None:
    """The integer that is written in decimal digits. None for other text, and for integers that do not fit into 64
    bits.

    >>> whole("42"), whole("4.2"), whole("9" * 5000)
    (42, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= DIGITS else None


def shown(value: Any) -> str:
    """The repr of a value, shortened if it is long."""
    return SHOWN.repr(value) if not isinstance(value, int) else str(value)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TrellisError(f"Cannot read the configuration {path}: {error.strerror or error}.") from error
    except RecursionError as error:
        raise TrellisError(f"{path}: its values are nested too deeply.") from error
    except ValueError as error:
        raise TrellisError(f"{path}: {' '.join(str(error).split())}") from error


def split_override(override: str) -> tuple[list[str], str]:
    """Split "section.key=value" into keys and value."""
    key, equals, text = override.partition("=")
    if not equals:
        raise TrellisError(f"Override {shown(override)} has no '='; write it as section.key=value.")
    return key.strip().split("."), text


def put(tables: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a value in nested tables."""
    table: Any = tables
    for key in keys[:-1]:
        table = table.setdefault(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise TrellisError(f"The key {shown('.'.join(keys))} is not of the form section.option.")
    table[keys[-1]] = value


def parse_value(text: str, kind: Any, path: list[str]) -> Any:
    """Parse a command-line value as TOML. Text that is not valid TOML stays a string, and so do string fields.

    The field is found by following the path of keys in the dataclass `kind`."""
    for key in path:
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    if str in (kind, *get_args(kind)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def parse_options(kind: type[T], text: str, where: str) -> T:
    """Build a config dataclass from "key=value, key=value", checking every key and value."""
    table: dict[str, Any] = {}
    for keys, value in map(split_override, filter(None, (part.strip() for part in text.split(",")))):
        put(table, keys, parse_value(value.strip(), kind, keys))
    return build(kind, table, f"{where}.")


def to_tables(config: Any) -> dict[str, Any]:
    """The options of a dataclass as nested tables."""
    return {name: value for name, value in asdict(config).items() if config.__dataclass_fields__[name].compare}


def to_toml(config: Any, comments: bool = False) -> str:
    """Format a dataclass as TOML; with `comments`, each option is preceded by its description."""
    lines = [line for one in fields(config) if one.compare and not is_dataclass(getattr(config, one.name))
             for line in _toml_lines(config, one, comments)]  # fmt: skip
    for one in fields(config):
        inner = getattr(config, one.name)
        if is_dataclass(inner):
            lines += ["", f"[{one.name}]", *(line for f in fields(inner) for line in _toml_lines(inner, f, comments))]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_lines(config: Any, one: Field[Any], comments: bool) -> list[str]:
    value, about = getattr(config, one.name), one.metadata.get("option")
    text = [f"# {about.doc}", *([f"# allowed: {about.allowed}"] if about.allowed else [])] if comments and about else []
    if value is None:
        return [*text, f"# {one.name} ="] if comments else []
    written = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return [*text, f"{one.name} = {written}".replace("\x7f", "\\u007f")]
