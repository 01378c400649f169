"""The fields of a request: their values, checks and JSON schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trellis.errors import TrellisError
from trellis.options import shown

LONGEST_TEXT, LONGEST_WORD, MOST_TEXTS = 2_000, 200, 20  # characters of a text and of a word; texts of a list
REQUIRED: Any = object()


@dataclass(frozen=True)
class Field(ABC):
    """A named value of a request. In a query string, it is written as text; in a JSON body, it has its JSON type."""

    name: str
    default: Any = REQUIRED

    @abstractmethod
    def read(self, value: Any) -> Any:
        """The value, checked; raises TrellisError."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value, without its default."""

    def wrong(self, value: Any, needed: str) -> TrellisError:
        return TrellisError(f"The field {self.name!r} is {shown(value)}; it must be {needed}.")


@dataclass(frozen=True)
class Text(Field):
    longest: int = LONGEST_TEXT

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self.wrong(value, "a text")
        if len(value) > self.longest:
            raise TrellisError(
                f"The field {self.name!r} has {len(value):,} characters; it may have at most {self.longest:,}."
            )
        if any(0xD800 <= ord(c) < 0xE000 for c in value):
            raise TrellisError(f"The field {self.name!r} is not valid Unicode text.")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.longest}


@dataclass(frozen=True)
class Integer(Field):
    least: int = 0
    most: int = 2**31 - 1

    def read(self, value: Any) -> int:
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 19:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
            raise self.wrong(value, f"an integer from {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Flag(Field):
    def read(self, value: Any) -> bool:
        value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise self.wrong(value, "true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice(Field):
    choices: tuple[str, ...] = ()

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise self.wrong(value, f"one of {', '.join(self.choices)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)}


@dataclass(frozen=True)
class Texts(Field):
    def read(self, value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) > MOST_TEXTS:
            raise self.wrong(value, f"a list of at most {MOST_TEXTS} texts")
        return [Text(self.name).read(one) for one in value]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": Text("").schema(), "maxItems": MOST_TEXTS}


@dataclass(frozen=True)
class Span(Field):
    """A smallest and a largest number."""

    most: int = 100

    def read(self, value: Any) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(value, "two integers, the smallest and the largest number")
        least, most = (Integer(self.name, most=self.most).read(one) for one in value)
        if least > most:
            raise self.wrong(value, "two integers, of which the first is not the larger one")
        return least, most

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": Integer("", most=self.most).schema(), "minItems": 2, "maxItems": 2}


def read_fields(fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all fields, in their order; raises TrellisError if one is wrong, missing or not recognised."""
    names = [field.name for field in fields]
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise TrellisError(
            f"The field {shown(unknown)} is not recognised; the fields are {', '.join(names) or 'none'}."
        )
    missing = next((field.name for field in fields if field.default is REQUIRED and field.name not in given), None)
    if missing is not None:
        raise TrellisError(f"The field {missing!r} is missing.")
    return {f.name: f.read(given[f.name]) if f.name in given else f.default for f in fields}
