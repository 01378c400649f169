"""The table of the API: every request, its fields, and a summary of its answer. Requests are named after the Python
methods."""

from __future__ import annotations

from typing import NamedTuple

from trellis.explore.fields import LONGEST_WORD, Choice, Field, Flag, Integer, Span, Text, Texts

MOST_STATES, MOST_WORDS, MOST_SENTENCES = 1_000, 200, 100  # in one answer
LONGEST_SENTENCE = 100  # words of a generated sentence
SEEDS = 2**63 - 1

MODEL = Integer("model", 0, 0, 1)
TEXT = Text("text")
TOP = Integer("top", 10, 1, MOST_WORDS)
COUNT, SEED = Integer("n", 5, 1, MOST_SENTENCES), Integer("seed", 0, 0, SEEDS)


class Endpoint(NamedTuple):
    """A request: GET with a query string, or POST with a JSON body."""

    name: str  # the method of `Views` that answers it
    method: str
    path: str  # {id} stands for the field "id"
    fields: tuple[Field, ...]
    summary: str
    view: str = ""  # the view of the page that shows the answer, for its link
    both: bool = False  # whether it is about all models, and is answered by the explorer itself
    queued: bool = True  # whether it uses the model, and therefore waits for its turn


ENDPOINTS = (
    Endpoint("about", "GET", "/api/about", (), "The models: families, sizes, views, facts and scores", both=True,
             queued=False),
    Endpoint("smooth", "POST", "/api/smooth", (MODEL, TEXT),
             "Posteriors of states and transitions, Viterbi path and surprisal of a text; ___ is a gap", "sentence"),
    Endpoint("score", "POST", "/api/score", (MODEL, TEXT), "Surprisal of each word, log-probability, perplexity",
             "sentence"),
    Endpoint("predict", "POST", "/api/predict", (MODEL, Text("text", ""), TOP),
             "The most probable next words, and the states that emit them", "questions"),
    Endpoint("infill", "POST", "/api/infill", (MODEL, TEXT, TOP, Flag("complete", False)),
             "The most probable words of each gap (___), and the most probable sentence", "questions"),
    Endpoint("generate", "POST", "/api/generate",
             (MODEL, Texts("contains", ()), Flag("ordered", False), Texts("not", ()), Text("regex", ""),
              Text("template", ""), Span("words", (0, LONGEST_SENTENCE), LONGEST_SENTENCE), COUNT, Flag("best", False),
              SEED),
             "Exact samples, or the most probable sentence, under constraints, and their probability", "questions"),
    Endpoint("sample", "POST", "/api/sample", (MODEL, COUNT, SEED, Text("prompt", "")), "Sampled sentences",
             "questions"),
    Endpoint("states", "GET", "/api/states",
             (MODEL, Integer("offset", 0), Integer("limit", 50, 1, MOST_STATES), Text("query", "", LONGEST_WORD),
              Choice("sort", "occupancy", ("occupancy", "class", "id"))),
             "States, a page at a time; with a query, those that emit the word, most probable first"),
    Endpoint("state", "GET", "/api/states/{id}", (Integer("id"), MODEL),
             "One state: words, predecessors and successors (merged by word), neighbours, contexts"),
    Endpoint("classes", "GET", "/api/classes", (MODEL,), "Classes of states"),
    Endpoint("map", "GET", "/api/map", (MODEL,),
             "The positions of all states in the plane; 202 while they are computed", queued=False),
    Endpoint("training", "GET", "/api/training", (MODEL,), "Training curves", queued=False),
    Endpoint("compare", "POST", "/api/compare", (Text("text", ""),),
             "Two models on a text, or where they differ most on their validation text", "compare", both=True),
    Endpoint("neighbours", "GET", "/api/neighbours", (MODEL, Text("word", "", LONGEST_WORD), TOP),
             "The words whose vectors are most similar to that of a word"),
    Endpoint("layers", "GET", "/api/layers", (MODEL, Integer("layer", 0)), "The states of a layer of a factorial HMM"),
    Endpoint("tag", "POST", "/api/tag", (MODEL, TEXT), "The tag of each word", "tags"),
    Endpoint("parse", "POST", "/api/parse", (MODEL, TEXT, Choice("method", "mbr", ("mbr", "viterbi"))),
             "The constituents of a sentence under a grammar", "tree"),
    Endpoint("ngrams", "GET", "/api/ngrams", (MODEL, Text("prompt", ""), TOP),
             "The most probable next words, each with the length of the longest n-gram that was seen in training"),
)  # fmt: skip
