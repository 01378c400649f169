"""The states of an HMM in its report: classes of words first where there are any, then states, then transitions."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions import Partition
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import merged_by_word, summarise_states
from trellis.models.base import Ranked
from trellis.report.format import percent, probability, whole, word
from trellis.report.heatmap import draw_transitions, shade
from trellis.report.markup import Markup, element, section

MOST_STATES, WORDS, FOLLOWERS = 40, 8, 3
MOST_CLASSES, STATES_PER_CLASS = 40, 6
LONGEST_WORD = 24
DEAD = 0.02  # states with less than this multiple of the average share of tokens get no row
TINT = "The darker the tint of a word, the more probable it is; hover for the number. Next states with the same most "
TINT += "probable word are merged."


class Follower(NamedTuple):
    """A possible successor and its probability: a class, or the states that share their most probable word."""

    name: str
    prob: float
    anchor: str  # the id of the row to link to
    hint: str


class Line(NamedTuple):
    """A row of a table: a state or a class."""

    anchor: str
    label: str
    share: float  # of tokens
    words: Ranked
    followers: list[Follower]


@torch.no_grad()
def state_sections(model: HMM) -> list[Markup]:
    """The table of states, or of classes of words with their states, and the heat map of transitions."""
    partition = model.params.partition
    return plain_sections(model) if partition is None else class_sections(model, partition)


def plain_sections(model: HMM) -> list[Markup]:
    """The most informative states and the transitions between them."""
    found = summarise_states(model, MOST_STATES, WORDS)
    states = [one.state for one in found if one.occupancy * model.num_states > DEAD] or [found[0].state]
    best = words_of_states(model)
    chosen = torch.tensor(states, device=model.device)
    lines, names = state_lines(model, states, best), model.vocab.decode(best[chosen].tolist())
    matrix = model.parts().transition.rows(chosen)[:, chosen]
    caption = "Most informative states first: those whose words differ most from the average, weighted by how often "
    caption += f"they are visited. {TINT}"
    return [
        section("States", caption, element("div", table(lines, "state"), class_="wide")),
        transitions("state", matrix, lines, names),
    ]


def class_sections(model: HMM, partition: Partition) -> list[Markup]:
    """The most frequent classes, each with its most frequent states, and the transitions between classes."""
    share, members = model.occupancy(), partition.state_class()
    shares = share.new_zeros(partition.num_classes).index_add_(0, members, share)
    classes = shares.topk(min(MOST_CLASSES, partition.num_classes)).indices
    classes = classes[shares[classes] > 0] if bool(shares.max() > 0) else classes[:1]
    within = torch.where(members == classes.unsqueeze(-1), share, 0.0)
    after = model.parts().transition.forward(within / shares[classes].unsqueeze(-1))
    matrix = share.new_zeros(len(classes), partition.num_classes).index_add_(1, members, after)
    names, lines = class_lines(model, partition, shares, classes, matrix)
    used = (share * model.num_states > DEAD).long()
    counts = torch.zeros_like(partition.sizes).index_add_(0, members, used)
    best, drawers = words_of_states(model), []
    for c, row in zip(classes.tolist(), within, strict=True):
        states = row.topk(min(STATES_PER_CLASS, partition.counts[c])).indices
        inner = table(state_lines(model, states[row[states] > 0].tolist(), best), "state")
        drawers.append(drawer(f"{whole(partition.counts[c])} states, {whole(int(counts[c]))} in use", inner))
    caption = (
        f"The {whole(model.num_states)} states are divided among {whole(partition.num_classes)} classes of words; "
    )
    caption += f"the most frequent classes come first. Open one to see its most frequent states. {TINT}"
    return [
        section("Classes", caption, element("div", table(lines, "class", drawers), class_="wide")),
        transitions("class", matrix[:, classes], lines, names),
    ]


def class_lines(
    model: HMM, partition: Partition, shares: Tensor, classes: Tensor, matrix: Tensor
) -> tuple[list[str], list[Line]]:
    """The names of classes, their most probable words, and the rows of the classes with p(next class) [n, C]."""
    log_words = model.parts().emission.predict(model.occupancy())
    own = log_words.masked_fill(partition.word_class != classes.unsqueeze(-1), -torch.inf)
    ranked = [model.rank(row - shares[c].log(), WORDS) for row, c in zip(own, classes, strict=True)]
    every = torch.full_like(shares, -torch.inf).scatter_reduce(0, partition.word_class, log_words, "amax")
    first = torch.zeros_like(partition.sizes)
    is_first = log_words == every[partition.word_class]
    first[partition.word_class[is_first]] = is_first.nonzero().flatten()
    names = model.vocab.decode(first.tolist())
    top = matrix.topk(min(FOLLOWERS, partition.num_classes))
    lines = []
    for row, c in enumerate(classes.tolist()):
        pairs = zip(top.indices[row].tolist(), top.values[row].tolist(), strict=True)
        after = [Follower(names[b], p, f"class-{b}", f"class {b}: {probability(p)}") for b, p in pairs]
        lines.append(Line(f"class-{c}", str(c), float(shares[c]), ranked[row], after))
    return [names[c] for c in classes.tolist()], lines


def words_of_states(model: HMM) -> Tensor:
    """The most probable word of every state [K]."""
    return model.parts().emission.best()[1]


def state_lines(model: HMM, states: list[int], best: Tensor) -> list[Line]:
    """The rows of states, given the most probable word of every state [K]."""
    if not states:
        return []
    chosen, share = torch.tensor(states, device=model.device), model.occupancy()
    log_words, rows = model.parts().emission.columns(chosen).T, model.parts().transition.rows(chosen)
    return [
        Line(f"state-{z}", str(z), float(share[z]), model.rank(log_words[i], WORDS), next_words(model, rows[i], best))
        for i, z in enumerate(states)
    ]


def next_words(model: HMM, row: Tensor, best: Tensor) -> list[Follower]:
    """p(next state) [K], summed over the states that share their most probable word [K]."""
    found = []
    for one in merged_by_word(row, best, len(model.vocab), FOLLOWERS):
        which = f"state {one.main}" if one.states == 1 else f"{whole(one.states)} states, mainly {one.main}"
        name = model.vocab.words[one.word]
        found.append(Follower(name, one.prob, f"state-{one.main}", f"{which}: {probability(one.prob)}"))
    return found


def table(lines: Sequence[Line], kind: str, drawers: Sequence[Markup] = ()) -> Markup:
    """A table of states or classes; each row may have a drawer below it."""
    most, listed = max(line.share for line in lines) or 1.0, {line.anchor for line in lines}
    rows = []
    for number, line in enumerate(lines):
        cells = (
            element("td", line.label, class_="number"),
            element("td", bar(line.share, most)),
            element("td", *(tinted(token, p) for token, p in line.words), class_="words"),
            element("td", *(follower(one, one.anchor in listed) for one in line.followers), class_="next"),
        )
        rows.append(element("tr", *cells, id=line.anchor))
        rows += [element("tr", element("td", drawers[number], colspan=4), class_="drawer")] if drawers else []
    heads = [element("th", head) for head in (kind, "share of tokens", "words", "likely next")]
    return element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="states")


def drawer(summary: str, inner: Markup) -> Markup:
    return element("details", element("summary", summary), inner)


def transitions(kind: str, matrix: Tensor, lines: Sequence[Line], names: Sequence[str]) -> Markup:
    """The heat map of p(next | current) [n, n] among the rows of a table."""
    caption = f"The probability of the next {kind} (column) given the current one (row); each is named by its most "
    caption += "probable word. Those with similar predecessors and successors are adjacent."
    drawn = draw_transitions(matrix.double().cpu().numpy(), [line.anchor for line in lines], names)
    return section("Transitions", caption, element("div", drawn, class_="wide"))


def bar(share: float, most: float) -> Markup:
    filled = element("i", style=f"width:{100 * share / most:.1f}%")
    return element("div", element("span", filled, class_="bar"), element("b", percent(share)), class_="share")


def tinted(token: str, prob: float) -> Markup:
    hint = f"{word(token)}: {probability(prob)}"
    return element("span", word(token, LONGEST_WORD), style=f"--p:{shade(prob):.3f}", title=hint)


def follower(one: Follower, listed: bool) -> Markup:
    """A possible successor with its probability, as a link if the table has a row for it."""
    shown = element("span", word(one.name, LONGEST_WORD), title=one.hint)
    return element(
        "div", element("a", shown, href=f"#{one.anchor}") if listed else shown, element("small", percent(one.prob))
    )
