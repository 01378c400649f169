"""All states of a model in a few megabytes: columns of integers, for a page without a server."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

PER_NAT, NEVER = 200, 9_999  # probabilities are stored as -200 log p, that is, to half a percent; 9999 is zero
PLACES, COSINES = 1_000, 1_000  # steps between 0 and 1 of positions and of cosines


class Level(NamedTuple):
    """How much is stored of each state."""

    words: int
    links: int  # predecessors, successors, and similar states
    contexts: int

    @property
    def bytes(self) -> int:
        """About how many bytes of JSON a state takes."""
        return 20 + 9 * self.words + 32 * self.links + 100 * self.contexts


LEVELS = (
    Level(60, 12, 12), Level(40, 12, 6), Level(30, 12, 3), Level(20, 12, 1), Level(20, 12, 0), Level(12, 8, 0),
    Level(10, 6, 0), Level(6, 4, 0), Level(20, 0, 0), Level(8, 0, 0), Level(4, 0, 0), Level(3, 0, 0), Level(1, 0, 0),
)  # fmt: skip


class Links(NamedTuple):
    """For each of K states, n other states, in descending order; -1 where there are fewer."""

    states: np.ndarray  # [K, n]
    values: np.ndarray  # [K, n]: probabilities or cosines


class StateTables(NamedTuple):
    """The states of a model as arrays. What takes too long to compute is None."""

    words: np.ndarray  # [K, n]: the most probable words, -1 where there are fewer
    probs: np.ndarray  # [K, n]
    base: np.ndarray  # [V]: p(word)
    occupancy: np.ndarray  # [K]
    places: np.ndarray  # [K, 2], from -1 to 1
    groups: np.ndarray  # [K]: the class of each state
    classes: list[dict[str, Any]]
    links: dict[str, Links] | None  # outgoing, incoming, neighbours
    contexts: list[list[tuple[list[int], int, list[int], float]]]  # of each state: words before, word, words after, p


def fitting(states: int, room: int) -> list[Level]:
    """The levels of detail that may fit into so many bytes, the most detailed first; the last one in any case."""
    return [level for level in LEVELS if level.bytes * states <= room] or [LEVELS[-1]]


def packed(tables: StateTables, vocabulary: list[str], room: int) -> dict[str, Any] | None:
    """The tables in at most `room` bytes of JSON, with as much detail as fits, and a sentence about what is left out;
    None if they do not fit."""
    levels = [one for one in fitting(len(tables.occupancy), room) if tables.links is not None or not one.links]
    for level in levels or [LEVELS[-1]]:
        found = at_level(tables, vocabulary, level)
        if len(json.dumps(found, separators=(",", ":"))) <= room:
            return found | {"left_out": left_out(level)}
    return None


def at_level(tables: StateTables, vocabulary: list[str], level: Level) -> dict[str, Any]:
    words, probs = tables.words[:, : level.words], tables.probs[:, : level.words]
    chosen = [some[: level.contexts] for some in tables.contexts]
    numbers, names = renumbered(words, [i for some in chosen for one in some for i in (*one[0], one[1], *one[2])])
    places = ((tables.places + 1) * PLACES).round().astype(int)
    found: dict[str, Any] = {
        "words": [vocabulary[i] for i in names],
        "base": stored(tables.base[names]),
        "x": places[:, 0].tolist(),
        "y": places[:, 1].tolist(),
        "class": tables.groups.tolist(),
        "occupancy": stored(tables.occupancy),
        "classes": tables.classes,
        "top": {"n": words.shape[1], "ids": numbers[words].ravel().tolist(), "probs": stored(probs)},
    }
    for name, links in (tables.links or {}).items() if level.links else ():
        ids, values = links.states[:, : level.links], links.values[:, : level.links]
        cosines = name == "neighbours"
        written = (values * COSINES).round().astype(int).ravel().tolist() if cosines else stored(values)
        found[name] = {"n": ids.shape[1], "ids": ids.ravel().tolist(), "values": written}
    if level.contexts:
        found["contexts"] = [
            [[numbers[before].tolist(), int(numbers[word]), numbers[after].tolist(), round(prob, 3)]
             for before, word, after, prob in some]
            for some in chosen
        ]  # fmt: skip
    return found


def renumbered(words: np.ndarray, others: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """New numbers for the word ids in use, the most frequent word first: a table from word ids to numbers, in which -1
    (the last place) stays -1, and the word id of each number."""
    used = np.concatenate([words[words >= 0], np.asarray(others, np.int64)])
    names, counts = np.unique(used, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    numbers = np.full(int(names.max(initial=0)) + 2, -1)
    numbers[names] = np.arange(len(names))
    return numbers, names


def stored(probs: np.ndarray) -> list[int]:
    """Probabilities as integers."""
    with np.errstate(divide="ignore"):
        logs = -PER_NAT * np.log(np.maximum(np.asarray(probs, np.float64), 0.0))
    return np.minimum(logs, NEVER).round().astype(int).ravel().tolist()


def left_out(level: Level) -> str:
    """A sentence about what is missing; empty if nothing is."""
    if level == LEVELS[0]:
        return ""
    missing = [] if level.links else ["transitions", "similar states"]
    missing += [] if level.contexts else ["contexts"]
    kept = f"Each state is stored with its {level.words} most probable words"
    if not missing:
        return f"{kept} and {level.contexts} contexts."
    return f"{kept}, without {' and '.join(filter(None, (', '.join(missing[:-1]), missing[-1])))}."
