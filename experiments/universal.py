"""Tag sets of the experiments: parts of speech mapped to the 12 universal tags, and spans of one kind alone."""

from collections.abc import Callable, Mapping
from functools import cache

from trellis.corpus.read import read_lines
from trellis.corpus.sources import data_folder
from trellis.corpus.tagsets import spans, write_spans
from trellis.errors import TrellisError

UNIVERSAL = "ADJ", "ADP", "ADV", "CONJ", "DET", "NOUN", "NUM", "PRON", "PRT", "VERB", "X", "."


def only(kind: str) -> Callable[[list[str]], list[str]]:
    """A filter that keeps only the spans of one kind, in IOB2."""
    return lambda tags: write_spans((span for span in spans(tags) if span.kind == kind), len(tags), "IOB2")


@cache
def penn_map() -> Mapping[str, str]:
    """Penn Treebank tags -> universal tags, from the published map in $TRELLIS_DATA/tagset_maps."""
    lines = read_lines(data_folder("tagset_maps") / "en-ptb.map")
    pairs = (line.split("\t") for line in lines if line.strip())
    return {row[0]: row[1] for row in pairs} | PENN_ALSO


PENN_ALSO = {"HYPH": ".", "NFP": ".", '"': ".", "AFX": "X", "ADD": "X", "GW": "X", "XX": "X"}  # from later treebanks
MEDPOST_MAP = {  # ours, as none is published; a + marks a token continued by the next
    "CC": "CONJ", "CS": "ADP", "CSN": "ADP", "CST": "ADP", "II": "ADP", "DB": "DET", "DD": "DET", "EX": "DET",
    "GE": "PRT", "TO": "PRT", "JJ": "ADJ", "JJR": "ADJ", "JJT": "ADJ", "VVGJ": "ADJ", "VVNJ": "ADJ", "MC": "NUM",
    "NN": "NOUN", "NNP": "NOUN", "NNS": "NOUN", "VVGN": "NOUN", "PN": "PRON", "PND": "DET", "PNG": "PRON",
    "PNR": "DET", "RR": "ADV", "RRR": "ADV", "RRT": "ADV", "SYM": "X", "VM": "VERB", "''": ".", "``": ".",
    "(": ".", ")": ".", ",": ".", ".": ".", ":": ".",
} | {f"V{verb}{form}": "VERB" for verb in "BDHV" for form in "BDGINZ"}  # fmt: skip


def universal(tags: list[str], tag_set: str = "penn") -> list[str]:
    """Map "penn" or "medpost" part-of-speech tags to universal ones."""
    table = MAPS[tag_set]()
    try:
        return [table[tag.removesuffix("+")] for tag in tags]
    except KeyError as error:
        raise TrellisError(f"The tag {error} is not in the {tag_set} tag set; which one does the data use?") from error


MAPS: dict[str, Callable[[], Mapping[str, str]]] = {"penn": penn_map, "medpost": lambda: MEDPOST_MAP}
