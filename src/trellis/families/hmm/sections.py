"""Report sections on the states of an HMM: the most informative ones, and their transitions."""

from typing import cast

import numpy as np
import torch

from trellis.corpus import GAP
from trellis.errors import TrellisError
from trellis.families.hmm.lattice import sentence_trellis
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import summarise_states
from trellis.families.language_model import LONGEST, SENTENCES, samples_section
from trellis.models.base import Infilled, StateSummary
from trellis.report.format import percent, probability, text, word
from trellis.report.heatmap import draw_transitions, shade
from trellis.report.markup import Markup, element, section
from trellis.report.trellis import draw_trellis

MOST_STATES, WORDS, FOLLOWERS = 40, 8, 3
LONGEST_WORD = 24
ANSWERS = 6  # candidates for the gap in a sentence
MOST_WORDS = 10  # maximum length of the sentence whose trellis is drawn
DEAD = 0.02  # states with a smaller multiple of the average share of tokens get no row


def sections(model: HMM) -> list[Markup]:
    """The report sections of an HMM."""
    sentences = model.sample(SENTENCES, LONGEST)
    samples = samples_section(sentences, *_cloze(model, sentences))
    return [*state_sections(model), *sentence_sections(model, sentences[0]), samples]


def sentence_sections(model: HMM, sentence: str) -> list[Markup]:
    """The trellis of the beginning of a sentence, unless its decoded text cannot be encoded again."""
    words = model.vocab.split(sentence)[:MOST_WORDS]
    try:
        drawn = draw_trellis(sentence_trellis(model, model.vocab.join(words)))
    except TrellisError:
        return []
    caption = "Circles: p(state | sentence). Lines: p(transition | sentence). Rings: the Viterbi path."
    return [section("A sentence", caption, element("div", drawn, class_="wide"))]


def state_sections(model: HMM) -> list[Markup]:
    """The table of states and the heat map of their transitions."""
    found = summarise_states(model, MOST_STATES, WORDS, FOLLOWERS)
    summaries = [state for state in found if state.occupancy * model.num_states > DEAD] or found[:1]
    states = [summary.state for summary in summaries]
    names = state_names(model)
    return [
        section(
            "States",
            "Most informative states first: those whose words differ most from the average, weighted by how often they "
            "are visited. The darker the tint of a word, the more probable it is in the state; hover for the number.",
            element("div", _table(summaries, names), class_="wide"),
        ),
        section(
            "Transitions",
            "The probability of the next state (column) given the current one (row); each is named by its most "
            "probable word. States with similar predecessors and successors are adjacent.",
            element("div", draw_transitions(among(model, states), states, [names[z] for z in states]), class_="wide"),
        ),
    ]


@torch.no_grad()
def state_names(model: HMM) -> list[str]:
    """The most probable word of every state [K]."""
    return model.vocab.decode(model.parts().emission.best()[1].tolist())


@torch.no_grad()
def among(model: HMM, states: list[int]) -> np.ndarray:
    """p(z' | z) for z, z' among n states: [n, n]."""
    start, transition, _ = model.parts()
    chosen = torch.tensor(states, device=start.device)
    one_hot = torch.nn.functional.one_hot(chosen, model.num_states).to(start.dtype)
    return transition.forward(one_hot)[:, chosen].double().cpu().numpy()


def _table(summaries: list[StateSummary], names: list[str]) -> Markup:
    most = max(summary.occupancy for summary in summaries)
    listed = {summary.state for summary in summaries}
    rows = [
        element(
            "tr",
            element("td", summary.state, class_="number"),
            element("td", _share(summary.occupancy, most)),
            element("td", *(_word(token, p) for token, p in summary.words), class_="words"),
            element("td", *(_follower(z, p, names[z], z in listed) for z, p in summary.next_states), class_="next"),
            id=f"state-{summary.state}",
        )
        for summary in summaries
    ]
    heads = [element("th", head) for head in ("state", "share of tokens", "words", "likely next")]
    return element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="states")


def _share(occupancy: float, most: float) -> Markup:
    bar = element("i", style=f"width:{100 * occupancy / most:.1f}%")
    return element("div", element("span", bar, class_="bar"), element("b", percent(occupancy)), class_="share")


def _word(token: str, prob: float) -> Markup:
    hint = f"{word(token)}: {probability(prob)}"
    return element("span", word(token, LONGEST_WORD), style=f"--p:{shade(prob):.3f}", title=hint)


def _follower(state: int, prob: float, name: str, listed: bool) -> Markup:
    """A link to the row of the state, if it has one."""
    shown = element("span", word(name, LONGEST_WORD), title=f"state {state}: {probability(prob)}")
    target = element("a", shown, href=f"#state-{state}") if listed else shown
    return element("div", target, element("small", percent(prob)))


def _cloze(model: HMM, sentences: list[str]) -> list[Markup]:
    """The longest sentence with its middle token hidden, and the most probable tokens for that gap."""
    spoken = [sentence for sentence in sentences if sentence and GAP not in sentence]
    if not spoken:
        return []
    try:
        tokens = model.vocab.decode(model.encode_line(max(spoken, key=len))[0].tolist())
        middle = len(tokens) // 2
        question = model.vocab.join([*tokens[:middle], GAP, *tokens[middle + 1 :]])
        ranked = cast(Infilled, model.infill(question, ANSWERS, 1, complete=len(tokens) < LONGEST)).gaps[0]
    except TrellisError:  # without <unk>, bytes of incomplete characters cannot be encoded again
        return []
    answers = [
        element("li", element("span", word(token), style=f"--p:{shade(p):.3f}"), element("small", probability(p)))
        for token, p in ranked
    ]
    return [
        element("h3", "One word hidden"),
        element("p", f"The middle of the longest sentence was “{word(tokens[middle])}”.", class_="caption"),
        element("blockquote", text(question)),
        element("ol", *answers, class_="answers"),
    ]
