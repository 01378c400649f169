"""Feature templates: each maps the words and parts of speech of a sentence to the attributes of every token, as
strings."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

WINDOW = 2  # words on either side
EDGES = "<s>", "</s>"
GROUPS: list[tuple[int, ...]] = [(-2, -1), (-1, 0), (0, 1), (1, 2), (-2, -1, 0), (-1, 0, 1), (0, 1, 2)]
AFFIXES = 4  # maximum length in letters
REACH = 4  # distance of nearby words
HUANG_SUFFIXES = "ing", "ogy", "ed", "s", "ly", "ion", "tion", "ity"
_SHAPES = (re.compile(r"[A-Z]"), "X"), (re.compile(r"[^\W\d_A-Z]"), "x"), (re.compile(r"\d"), "d")
_RUNS = re.compile(r"(.)\1+")

Attributes = list[list[str]]  # attributes of each token
Template = Callable[[Sequence[str], Sequence[str] | None], Attributes]


def around(values: Sequence[str], t: int, window: int = WINDOW) -> list[str]:
    """The values at t - window ... t + window. Positions outside the sentence have markers instead of values."""
    last = len(values)
    return [values[i] if 0 <= i < last else EDGES[i >= last] for i in range(t - window, t + window + 1)]


def windowed(name: str, values: Sequence[str]) -> Attributes:
    """name[-2]=value ... name[2]=value for every token."""
    labels = [f"{name}[{offset}]=" for offset in range(-WINDOW, WINDOW + 1)]
    return [[a + b for a, b in zip(labels, around(values, t), strict=True)] for t in range(len(values))]


def joined(name: str, values: Sequence[str], offsets: Sequence[tuple[int, ...]]) -> Attributes:
    """Adjacent values joined into one attribute, at the given offsets."""
    labels = [f"{name}[{','.join(map(str, group))}]=" for group in offsets]
    rows = (around(values, t) for t in range(len(values)))
    return [
        [label + "|".join(row[WINDOW + i] for i in group) for label, group in zip(labels, offsets, strict=True)]
        for row in rows
    ]


def beside(*parts: Iterable[list[str]]) -> Attributes:
    """Concatenate the attributes of each token."""
    return [list(chain.from_iterable(rows)) for rows in zip(*parts, strict=True)]


def shape(word: str) -> str:
    """The shape of a word: letters as X and x, digits as d."""
    for pattern, letter in _SHAPES:
        word = pattern.sub(letter, word)
    return word


def short_shape(word: str) -> str:
    """The shape of a word, with each run of equal characters reduced to one."""
    return _RUNS.sub(r"\1", shape(word))


def affixes(words: Sequence[str]) -> Attributes:
    """Prefixes and suffixes of one to four letters."""
    lengths = range(1, AFFIXES + 1)
    return [
        [f"pre={w[:n]}" for n in lengths if n < len(w)] + [f"suf={w[-n:]}" for n in lengths if n < len(w)]
        for w in map(str.lower, words)
    ]


def spelling(words: Sequence[str]) -> Attributes:
    """Shapes, capitals, digits and hyphens."""
    tests: dict[str, Callable[[str], bool]] = {
        "capital": lambda w: w[:1].isupper(),
        "all capitals": str.isupper,
        "digit": lambda w: any(c.isdigit() for c in w),
        "hyphen": lambda w: "-" in w[1:],
        "inner capital": lambda w: any(c.isupper() for c in w[1:]) and not w.isupper(),
    }
    return [
        [
            "bias",
            f"shape={shape(w)[:12]}",
            f"short={short_shape(w)}",
            *(name for name, true in tests.items() if true(w)),
        ]
        for w in words
    ]


def chunk(words: Sequence[str], pos: Sequence[str] | None) -> Attributes:
    """The 19 attributes of crfsuite's chunker. Without parts of speech, only the attributes of words."""
    parts = [windowed("w", words), joined("w", words, [(-1, 0), (0, 1)])]
    if pos is not None:
        parts += [windowed("p", pos), joined("p", pos, GROUPS)]
    return beside(*parts)


def huang(words: Sequence[str], pos: Sequence[str] | None) -> Attributes:
    """The features of Huang and Yates: word, suffix, capitalisation and digits. We add the surrounding words and, if
    given, parts of speech."""
    own = [
        [f"suffix={suffix}" for suffix in HUANG_SUFFIXES if w.lower().endswith(suffix)]
        + ["capital"] * w[:1].isupper()
        + ["digit"] * any(c.isdigit() for c in w)
        for w in words
    ]
    return beside(windowed("w", words), own, *([windowed("p", pos)] if pos is not None else []))


def pos(words: Sequence[str], pos: Sequence[str] | None) -> Attributes:
    """Rich part-of-speech features: words, bigrams, affixes, spelling."""
    lower = [w.lower() for w in words]
    return beside(
        windowed("w", lower), joined("w", lower, [(-1, 0), (0, 1)]), [[f"W={w}"] for w in words], affixes(words),
        spelling(words), windowed("a", [w[-3:] for w in lower]),
    )  # fmt: skip


def nearby(words: Sequence[str]) -> Attributes:
    """The preceding and following words within reach, regardless of position."""
    return [
        [f"before={w}" for w in words[max(t - REACH, 0) : t]] + [f"after={w}" for w in words[t + 1 : t + 1 + REACH]]
        for t in range(len(words))
    ]


def ner(words: Sequence[str], pos: Sequence[str] | None) -> Attributes:
    """Named entities: words, affixes and shapes in the window, and nearby words."""
    lower, shapes = [w.lower() for w in words], [short_shape(w) for w in words]
    pairs = [(-1, 0), (0, 1)]
    parts = [
        windowed("W", words), joined("w", lower, [(0,), *pairs]), affixes(words), spelling(words), nearby(lower),
        windowed("s", shapes), joined("s", shapes, [*pairs, (-1, 0, 1)]),
    ]  # fmt: skip
    return beside(*parts, *([windowed("p", pos), joined("p", pos, pairs)] if pos is not None else []))


TEMPLATES: dict[str, Template] = {"pos": pos, "chunk": chunk, "ner": ner, "huang": huang}
WITHOUT_POS = {"pos"}  # templates that never use parts of speech
