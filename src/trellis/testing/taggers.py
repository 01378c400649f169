"""What every tagger must answer."""

from typing import Any

from trellis.testing.close import Check, require


def tags(case: Any) -> None:
    """`tag` gives every word one of the tagger's labels; the same for a sentence alone, and by the loaded tagger."""
    words = [text.split() for text in case.texts]
    found = case.model.tag(words)
    require([len(row) for row in found] == [len(row) for row in words], f"it gave {found}")
    unknown = {tag for row in found for tag in row} - {*case.model.labels}
    require(not unknown, f"tags that are not among its labels: {unknown}")
    require([case.model.tag([row])[0] for row in words] == found, "a sentence alone has other tags")
    require(case.loaded.tag(words) == found, "the loaded tagger gives other tags")


def scored(case: Any) -> None:
    """It knows what it is scored by, and which words it has seen."""
    require(case.model.units in ("tokens", "spans"), f"units are {case.model.units!r}")
    require(all(word in case.model.word_counts for word in case.texts[0].split()), "it has not counted its words")


CHECKS: list[Check] = [tags, scored]
