"""Small texts, and a small model of every family, trained in a second or two."""

from __future__ import annotations

from typing import Any

import trellis

WORDS = ["the", "cat", "sees", "dog", "runs", "a", "and", "sleeps", "bird"]
SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sees", "a bird sleeps"]
TEXT = "".join(f"{line}\n" for line in SENTENCES * 8)
TAGS = {"the": "D", "a": "D", "cat": "N", "dog": "N", "bird": "N", "and": "C"}
TAGGED = [[(word, TAGS.get(word, "V")) for word in line.split()] for line in SENTENCES * 8]
OPTIONS: dict[str, dict[str, Any]] = {
    "hmm": {"states": 3, "epochs": 1},
    "fhmm": {"layers": 2, "states": 2, "epochs": 1},
    "lds": {"dim": 2, "epochs": 1},
    "ngram": {"order": 3},
    "bigram": {},
    "feedforward": {"dim": 4, "epochs": 1},
    "lstm": {"dim": 4, "epochs": 1},
    "rnn": {"dim": 4, "epochs": 1},
    "pcfg": {"nonterminals": 2, "preterminals": 3, "dim": 4, "epochs": 1},
    "crf": {"iterations": 2},
    "hmm-tagger": {"states": 4, "epochs": 1},
}
VARIANTS: dict[str, dict[str, Any]] = {  # other parameterisations
    "hmm neural": {"states": 4, "epochs": 1, "params": "neural", "dim": 4},
    "hmm lowrank": {"states": 4, "epochs": 1, "params": "lowrank", "dim": 4, "features": 3},
    "hmm brown": {"states": 4, "classes": 2, "epochs": 1, "emission": "brown"},
    "hmm banded": {"states": 4, "epochs": 1, "params": "lowrank-table", "features": 3, "band": 1},
    "pcfg table": {"nonterminals": 3, "preterminals": 3, "rank": 2, "params": "table", "epochs": 1},
    "lstm deep": {"dim": 4, "epochs": 1, "depth": 2},
}


def model(name: str) -> Any:
    """A small trained model."""
    family, options = name.split()[0], (OPTIONS | VARIANTS)[name]
    tagged = family in ("crf", "hmm-tagger")
    more: dict[str, Any] = {} if tagged else {"tokenizer": "whitespace", "min_count": 1}
    data = TAGGED if tagged else SENTENCES * 8
    return trellis.train(data, family=family, device="cpu", **options, **more).model
