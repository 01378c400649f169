"""The constructors of constraints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from numbers import Integral
from typing import Any

import numpy as np

from trellis.constraints import patterns
from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton, check_size, explore, minimised
from trellis.constraints.constraint import Constraint, replaced
from trellis.constraints.glushkov import automaton_of
from trellis.constraints.syntax import Sequenced
from trellis.constraints.text import characters_of, lifted
from trellis.constraints.utf8 import all_characters
from trellis.errors import TrellisError

Words = str | Iterable[str] | Callable[[str], bool] | None  # a word, words, a condition on words, or any word


def anything() -> Constraint:
    """The constraint that every sentence satisfies."""
    return length(0)


def contains(phrase: str, at_least: int = 1, at_most: int | None = None) -> Constraint:
    """The constraint that a word or phrase occurs `at_least` to `at_most` times; occurrences may overlap.

    Parameters
    ----------
    phrase
        A word, or several words separated by spaces.
    at_least
        The smallest number of occurrences.
    at_most
        The largest number of occurrences; None: no limit.
    """
    check_text(phrase)
    if not are_bounds(at_least, at_most):
        raise TrellisError(
            f"Cannot require {phrase!r} between {at_least} and {at_most} times; pass integers 0 <= at_least <= at_most."
        )
    most = "" if at_most is None else f", at most {at_most} times"
    least = "" if at_least == 1 else f" at least {at_least} times"

    def build(alphabet: Alphabet) -> Automaton:
        tokens, ceiling = encoded(phrase, alphabet), at_least if at_most is None else at_most + 1
        matcher, classes = Matcher(tokens), class_of(tokens, alphabet)

        def step(state: tuple[int, int]) -> Iterable[tuple[int, int]]:
            for token in [*matcher.symbols, None]:
                matched = matcher.step(state[0], token)
                yield matched, min(state[1] + (matched == len(tokens)), ceiling)

        def accepts(state: tuple[int, int]) -> bool:
            return state[1] >= at_least and (at_most is None or state[1] <= at_most)

        return explore((0, 0), step, accepts, classes)

    return Constraint(f"contains {phrase!r}{least}{most}", build)


def banned(phrase: str) -> Constraint:
    """The constraint that a word or phrase does not occur.

    Parameters
    ----------
    phrase
        A word, or several words separated by spaces.
    """
    return replaced(~contains(phrase), f"not {phrase!r}")


def all_of(*phrases: str) -> Constraint:
    """The constraint that every phrase occurs, in any order.

    Parameters
    ----------
    phrases
        Words or phrases. The words of a phrase are separated by spaces.
    """
    return reduce(operator.and_, map(contains, phrases)) if phrases else anything()


def ordered(*phrases: str) -> Constraint:
    """The constraint that the phrases occur in this order, without overlap.

    Parameters
    ----------
    phrases
        Words or phrases. The words of a phrase are separated by spaces.
    """
    check_text(*phrases)

    def build(alphabet: Alphabet) -> Automaton:
        tokens = [encoded(phrase, alphabet) for phrase in phrases]
        matchers, used = [Matcher(one) for one in tokens], sorted({t for one in tokens for t in one})

        def step(state: tuple[int, int]) -> Iterable[tuple[int, int]]:
            number, matched = state
            for token in [*used, None]:
                if number == len(tokens):
                    yield state
                    continue
                after = matchers[number].step(matched, token)
                yield (number + 1, 0) if after == len(tokens[number]) else (number, after)

        return explore((0, 0), step, lambda state: state[0] == len(tokens), class_of(used, alphabet))

    return Constraint(f"contains {', then '.join(map(repr, phrases))}", build)


def conjunction(parts: Mapping[str, Sequence[str]], in_order: bool = False) -> Constraint:
    """The conjunction of the constraints in `parts`, which maps kinds of constraints (keys of KINDS) to texts. With
    `in_order`, the phrases of the kind "contains" must occur in the given order."""
    given = dict(parts)
    if in_order and len(given.get("contains", ())) < 2:
        raise TrellisError("An order needs at least two phrases that the sentence contains.")
    found = [ordered(*given.pop("contains"))] if in_order else []
    found += [KINDS[kind](text) for kind, texts in given.items() for text in texts]
    return reduce(operator.and_, found) if found else anything()


def begins(phrase: str) -> Constraint:
    """The constraint that a sentence begins with a phrase.

    Parameters
    ----------
    phrase
        A word, or several words separated by spaces.
    """
    return replaced(exactly(phrase) + anything(), f"begins with {phrase!r}")


def ends(phrase: str) -> Constraint:
    """The constraint that a sentence ends with a phrase.

    Parameters
    ----------
    phrase
        A word, or several words separated by spaces.
    """
    return replaced(anything() + exactly(phrase), f"ends with {phrase!r}")


def exactly(sentence: str) -> Constraint:
    """The constraint that only one sentence satisfies.

    Parameters
    ----------
    sentence
        The sentence, without <eos>.
    """
    return replaced(one_of([sentence]), f"is {sentence!r}")


def one_of(sentences: Iterable[str]) -> Constraint:
    """The constraint that a sentence is one of the given sentences.

    Parameters
    ----------
    sentences
        The sentences, without <eos>.
    """
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        raise TrellisError(f"one_of takes a list of sentences, not {sentences!r}.")
    given = list(sentences)
    check_text(*given)

    def build(alphabet: Alphabet) -> Automaton:
        rows = {tuple(alphabet.encode(sentence)) for sentence in given}
        nodes, used = {row[:n] for row in rows for n in range(len(row) + 1)}, sorted({t for row in rows for t in row})

        def step(state: tuple[int, ...] | None) -> Iterable[tuple[int, ...] | None]:
            for token in [*used, None]:
                after = None if state is None or token is None else (*state, token)
                yield after if after in nodes else None

        first: tuple[int, ...] | None = ()
        return explore(first, step, lambda state: state in rows, class_of(used, alphabet))

    return Constraint(f"is one of {len(given)} sentences", build)


def length(least: int, most: int | None = None) -> Constraint:
    """The constraint that a sentence has `least` to `most` tokens.

    Parameters
    ----------
    least
        The smallest number of tokens.
    most
        The largest number of tokens; None: no limit.
    """
    if not are_bounds(least, most):
        wanted = f"{least} or more words" if most is None else f"from {least} to {most} words"
        raise TrellisError(f"A sentence cannot have {wanted}; pass integers 0 <= least <= most.")
    top = least if most is None else most + 1
    check_size(top)

    def build(alphabet: Alphabet) -> Automaton:
        states = np.arange(top + 1)
        moves = np.minimum(states + 1, top)[:, None]
        accepting = (states >= least) & (True if most is None else states <= most)
        return minimised(Automaton(moves, accepting, np.zeros(len(alphabet.words), np.int64)))

    return Constraint(f"{least} or more words" if most is None else f"{least} to {most} words", build)


def positions(allowed: Sequence[Words]) -> Constraint:
    """The constraint that a sentence has one word for each entry of `allowed`.

    Parameters
    ----------
    allowed
        For each position a word, a list of words, a function from a word to True or False, or None for any word.

    Examples
    --------
    >>> trellis.constraints.positions([["a", "the"], None, lambda word: word.endswith("s")])
    <Constraint: 3 words, each among those allowed>
    """
    if not isinstance(allowed, Iterable):
        raise TrellisError(f"positions takes a list with an entry for each word, not {allowed!r}.")
    given = [[one] if isinstance(one, str) else list(one) if isinstance(one, Iterable) else one for one in allowed]
    for one in given:
        if isinstance(one, list):
            check_text(*one)
        elif one is not None and not callable(one):
            raise TrellisError(f"An allowed word is text, a list, a function or None, not {one!r}.")

    def mask(chosen: Words, alphabet: Alphabet) -> np.ndarray:
        if callable(chosen):
            return alphabet.any_word & np.array([bool(chosen(word)) for word in alphabet.words])
        if chosen is None:
            return alphabet.any_word
        found = [alphabet.encode(word) for word in chosen]
        if any(len(tokens) != 1 for tokens in found):
            raise TrellisError("An allowed word must be one token; use patterns for phrases.")
        return alphabet.mask([tokens[0] for tokens in found])

    def build(alphabet: Alphabet) -> Automaton:
        masks = [mask(one, alphabet) for one in given]
        return automaton_of(Sequenced(masks), len(alphabet.words))

    count = "1 word," if len(given) == 1 else f"{len(given)} words, each"
    return Constraint(f"{count} among those allowed", build)


def tokens(pattern: str) -> Constraint:
    """The constraint that the tokens of a sentence match a pattern.

    Parameters
    ----------
    pattern
        Words separated by spaces, `.` for any word, [a b] and [^a b] for sets of words, and ( ) | * + ? {m,n}. A
        backslash makes the next character an ordinary one.
    """
    check_text(pattern)
    return Constraint(f"tokens match {pattern!r}", lambda alphabet: patterns.of_tokens(pattern, alphabet))


def regex(pattern: str) -> Constraint:
    """The constraint that the whole text of a sentence matches a regular expression.

    Parameters
    ----------
    pattern
        An expression in the syntax of Python's `re`, without backreferences, lookaround, flags, named groups, word
        boundaries, or atomic or possessive parts.
    """
    check_text(pattern)
    return Constraint(f"text matches {pattern!r}", lambda alphabet: patterns.of_characters(pattern, alphabet))


def template(text: str) -> Constraint:
    """The constraint that a sentence is the given text with its gaps filled.

    Parameters
    ----------
    text
        A text with gaps: ___ is one word, ___{1,3} one to three words, ___{2,} two or more.
    """
    check_text(text)
    return Constraint(f"fills {text!r}", lambda alphabet: patterns.of_template(text, alphabet))


def table(edges: Mapping[Any, Mapping[Any, Any]], start: Any, accepting: Iterable[Any]) -> Constraint:
    """The constraint that your own automaton accepts a sentence.

    Parameters
    ----------
    edges
        {state: {token: next state}}, where a token is a word, an id, or None for all other tokens. A sentence with a
        token that has no edge is rejected.
    start : hashable
        The first state.
    accepting
        The states in which a sentence may end.
    """
    try:
        final, _ = set(accepting), {start} | {after for row in edges.values() for after in row.values()}
    except (AttributeError, TypeError) as error:
        raise TrellisError(
            "The edges of an automaton are {state: {token: next state}}; states are hashable."
        ) from error

    def build(alphabet: Alphabet) -> Automaton:
        ids = {
            word: int(word) if isinstance(word, Integral) else one_token(word, alphabet)
            for row in edges.values() for word in row if word is not None
        }  # fmt: skip
        if any(not 0 <= i < len(alphabet.words) for i in ids.values()):
            raise TrellisError(f"The automaton has a token outside the {len(alphabet.words):,} ids of the vocabulary.")
        rows = {state: {ids.get(word): after for word, after in row.items()} for state, row in edges.items()}
        used = sorted(set(ids.values()))

        def step(state: Any) -> Iterable[Any]:
            row = rows.get(state, {})
            return (row.get(token, row.get(None, DEAD)) for token in [*used, None])

        return explore(start, step, lambda state: state in final, class_of(used, alphabet))

    return Constraint("the given automaton", build)


DEAD = object()


def from_fsm(machine: Any) -> Constraint:
    """The constraint that an automaton over characters accepts the text of a sentence.

    Parameters
    ----------
    machine : interegular.FSM
        An automaton of the package `interegular`, or one like it. It starts in the state `machine.initial` and accepts
        in the states `machine.finals`. The next state is `machine.map[state][machine.alphabet[character]]`. If there is
        no next state, or the alphabet does not have the character, the text is rejected.
    """

    if not all(hasattr(machine, name) for name in ("initial", "finals", "map", "alphabet")):
        raise TrellisError(f"An automaton has the attributes initial, finals, map and alphabet, unlike {machine!r}.")

    def symbol(character: str) -> Any:
        try:
            return machine.alphabet[character]
        except KeyError:
            return DEAD

    def build(alphabet: Alphabet) -> Automaton:
        def changes() -> Iterable[int]:
            symbols = [symbol(character) for character in all_characters()]
            return (i for i in range(1, len(symbols)) if symbols[i] != symbols[i - 1])

        characters = characters_of(alphabet, changes)
        symbols = [symbol(character) for character in characters]

        def step(state: Any) -> Iterable[Any]:
            row = machine.map.get(state, {})
            return (row.get(one, DEAD) for one in symbols)

        inner = explore(machine.initial, step, lambda s: s in machine.finals, np.arange(len(characters)))
        return lifted(inner, characters, alphabet)

    return Constraint("the given automaton over characters", build)


KINDS: dict[str, Callable[[str], Constraint]] = {  # kinds of constraints that one text describes
    "contains": contains,
    "not": banned,
    "begins": begins,
    "ends": ends,
    "template": template,
    "tokens": tokens,
    "regex": regex,
}


def check_text(*texts: Any) -> None:
    """Raise if some text is not a string."""
    for text in texts:
        if not isinstance(text, str):
            raise TrellisError(f"A constraint is made of text, not of {text!r}; pass a string.")


def are_bounds(least: Any, most: Any) -> bool:
    """Whether these are integers 0 <= least <= most; `most` may be None."""
    top = least if most is None else most
    return all(isinstance(number, Integral) for number in (least, top)) and 0 <= least <= top


def encoded(phrase: str, alphabet: Alphabet) -> list[int]:
    found = alphabet.encode(phrase)
    if not found:
        raise TrellisError("A constraint has an empty phrase; write at least one word.")
    return found


def one_token(word: str, alphabet: Alphabet) -> int:
    check_text(word)
    found = alphabet.encode(word)
    if len(found) != 1:
        raise TrellisError(f"{word!r} is {len(found)} tokens, not one.")
    return found[0]


def class_of(tokens: Sequence[int], alphabet: Alphabet) -> np.ndarray:
    """The class of every token of the vocabulary, [V].

    Each of the given tokens has a class of its own, numbered in ascending order; all other tokens share one."""
    used = sorted(set(tokens))
    classes = np.full(len(alphabet.words), len(used))
    classes[used] = np.arange(len(used))
    return classes


class Matcher:
    """The automaton of Knuth, Morris and Pratt. In state n, the last n tokens read are the first n tokens of a
    phrase."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.symbols = list(tokens), sorted(set(tokens))
        self.fallback, border = [0], 0  # border: the longest shorter prefix of the phrase that has just been read
        for token in tokens[1:]:  # a border before the same token would fail too
            self.fallback.append(self.fallback[border] if token == tokens[border] else border)
            border = self.step(border, token)
        self.fallback.append(border)

    def step(self, matched: int, token: int | None) -> int:
        """The state after one more token; None is a token that the phrase does not contain."""
        while matched == len(self.tokens) or token != self.tokens[matched]:
            if matched == 0:
                return 0
            matched = self.fallback[matched]
        return matched + 1
