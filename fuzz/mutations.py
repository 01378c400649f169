"""Random changes of bytes, texts and JSON values; and values that programs stumble over."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS: list[Any] = [
    0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30,
    0.0, -0.0, 0.5, 1e-320, 1e-39, 1e38, 3.5e38, 1e300, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
DIGITS = [
    "9" * 400,
    "9" * 5_000,
    "-" + "1" * 400,
    "1e999",
    "1e-999",
    "0x" + "f" * 30,
    "1_0",
    "٣",
    "+1",
    " 1",
    "1.",
    ".5",
]
STRINGS = [
    "", " ", "\t", "\n", "\r\n", "\r", "\0", "\x1b[2J\x1b]0;x\x07", "\ufeff", "\u2028", "\u200d", "é", "😀", "ﬃ", "İ",
    "a" * 5_000, "___", "<unk>", "<eos>", "<s>", "../../etc/passwd", "/dev/null", "-", "--", "=1+1", '"', "'", "[", "(",
    "{" * 2_000, "[" * 2_000, "(" * 2_000, "%s%n", "nan", "inf", "null", "true", "auto",
]  # fmt: skip
BYTES = [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x00" * 16, b"\x1f\x8b\x08", b"\x80", b"\x1b[31m"]


def any_value(random: Random) -> Any:
    """A number, a string or a container that JSON and TOML can represent."""
    kinds: list[Callable[[], Any]] = [
        lambda: random.choice(NUMBERS),
        lambda: random.choice(STRINGS),
        lambda: random.randint(-3, 300),
        lambda: random.choice([None, True, False, [], {}, [[]], [1, "a", None], {"a": {"b": 1}}]),
        lambda: random.uniform(-2, 2),
    ]
    return random.choice(kinds)()


def any_number(random: Random) -> str:
    """The text of a number, or of what looks like one."""
    pool = [lambda: str(random.choice(NUMBERS)), lambda: random.choice(DIGITS), lambda: str(random.randint(-2, 20))]
    return random.choice(pool)()


def any_text(random: Random, words: list[str], longest: int = 12) -> str:
    """Some words, with hostile strings among them."""
    chosen = [random.choice(words if random.random() < 0.8 else STRINGS) for _ in range(random.randint(0, longest))]
    return random.choice([" ", " ", " ", "", "\t", "\n"]).join(chosen)


def changed_json(random: Random, value: Any) -> Any:
    """A JSON value with one place changed, removed, added or repeated."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        rest = {name: entry for name, entry in value.items() if name != key}
        if random.random() < 0.15:
            return rest
        if random.random() < 0.05:
            return value | {random.choice(STRINGS): any_value(random)}
        return value | {key: changed_json(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        middle = random.choice([[], [value[place]] * 2, [changed_json(random, value[place])]])
        return [*value[:place], *middle, *value[place + 1 :]]
    return any_value(random)


def changed_bytes(random: Random, data: bytes) -> bytes:
    """Bytes with a few changes: flips, cuts, repeats, and hostile pieces."""
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
        end = random.choice([end, min(at + 8, end)])
        middle: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: data[at:end] * 2,  # noqa: B023
            lambda: bytes(end - at),  # noqa: B023
            lambda: bytes([random.randrange(256)]) + data[at + 1 : end],  # noqa: B023
            lambda: random.choice(BYTES),
            lambda: random.choice(STRINGS).encode(),
            lambda: any_number(random).encode(),
        ]
        data = data[:at] + random.choice(middle)() + data[end:] if random.random() < 0.9 else data[:at]
    return data


def changed_text(random: Random, text: str) -> bytes:
    """A text whose fields, lines or bytes are changed."""
    lines = text.split("\n")
    for _ in range(random.choice([1, 1, 2, 4])):
        number = random.randrange(len(lines))
        between = "\t" if "\t" in lines[number] else " "
        fields = lines[number].split(between)
        place = random.randrange(len(fields))
        fields[place] = random.choice([any_number(random), random.choice(STRINGS), fields[place] * 2, ""])
        choices = [[between.join(fields)], [], [lines[number]] * 2, [between.join(fields[:place])], [lines[number], ""]]
        lines[number : number + 1] = random.choice(choices)
        lines = lines or [""]
    data = "\n".join(lines).encode()
    return changed_bytes(random, data) if random.random() < 0.4 else data
