"""Checks of taggers."""

from typing import Any

from trellis.testing.close import Check, require


def tags(case: Any) -> None:
    """`tag` assigns each word one of the tagger's labels, the same for a sentence alone and for the loaded tagger."""
    words = [text.split() for text in case.texts]
    found = case.model.tag(words)
    require([len(row) for row in found] == [len(row) for row in words], f"it returned {found}")
    unknown = {tag for row in found for tag in row} - {*case.model.labels}
    require(not unknown, f"tags that are not among its labels: {unknown}")
    require([case.model.tag([row])[0] for row in words] == found, "the tags of a sentence alone differ")
    require(case.loaded.tag(words) == found, "the tags of the loaded tagger differ")


def scored(case: Any) -> None:
    """The tagger has a unit of evaluation, and word counts of its training text."""
    require(case.model.units in ("tokens", "spans"), f"units are {case.model.units!r}")
    require(all(word in case.model.word_counts for word in case.texts[0].split()), "it has no word counts")


CHECKS: list[Check] = [tags, scored]
