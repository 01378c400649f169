"""The report: well-formed, self-contained, escaped, and its numbers are the model's."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from trellis.corpus import Split, Vocabulary
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import summarise_states
from trellis.families.ngram.model import NGram
from trellis.models.base import LanguageModel
from trellis.report.curves import linear_ticks, log_ticks, read_curves, spread
from trellis.report.format import COLUMNS, Column, percent, perplexity, text, word
from trellis.report.heatmap import likeness_order
from trellis.report.markup import SVG, element
from trellis.report.page import write_report
from trellis.tasks.scores import Scores

HOSTILE = ["<script>alert(1)</script>", "\"&'", "</style>", "\x1b[31m", "w" * 500, "\x00", "]]>", "\udc80", "\u202e"]
WORDS = ["<eos>", "<unk>", "the", "cat", *HOSTILE]
VOID = {"meta"}
ROUNDING = 5e-4  # of a number with three decimals
NAMES = "model", "states", "parameters", "train", "valid", "test", "tokens_per_second"


def make_hmm(states: int, words: list[str] = WORDS, seed: int = 0, tokenizer: str = "whitespace") -> HMM:
    """A random HMM, peaked enough for its states to differ."""
    model = HMM.new(Vocabulary(words, [10] * len(words), tokenizer), states, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.params.parameters():
            tensor.copy_(3 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def make_classes() -> HMM:
    """A random HMM of 12 states in three classes of unequal size."""
    words = ["<eos>", "<unk>", "a", "b", "c", "d", "e"]
    partition = Partition(torch.tensor([0, 1, 1, 1, 2, 2, 2]), [2, 4, 6])
    model = HMM.build(Vocabulary(words, [10] * 7, "whitespace"), HMMConfig(states=12), False, 0, partition)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.params.parameters():
            tensor.copy_(3 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def make_scores(model: LanguageModel) -> Scores:
    model.about = {"corpus": 'corpus <u>"x"</u> & more', "training": {"epoch": 3, "step": 600, "seconds": 75.0}}
    model.about["run"] = {"command": "trellis train '<b>'", "seed": 7, "device": "a CPU", "torch": "2.11"}
    rows = [
        ["unigram", None, 8, 437.61, 390.14, 387.58, 259506.4],
        ["bigram", None, 14, 60.04, math.inf, math.nan, 90584.2],
        [model.family, model.num_states, model.num_parameters(), 99.97, 123.44, 1234.56, 44159.9],
    ]
    tables = [dict(zip(NAMES, row, strict=True)) for row in rows]
    return Scores("perplexity", {"test": 1234.56}, tables, headline="test")


def write_metrics(folder: Path) -> None:
    lines = [
        {"step": 100 * n, "epoch": n // 2, "seconds": 30.0 * n, "train_ppl": 900.0 / n, "valid_ppl": 1000.0 / n}
        for n in range(1, 6)
    ]
    lines = [line if n % 2 == 0 else {**line, "valid_ppl": None} for n, line in enumerate(lines)]
    odd = [{"step": 600, "train_ppl": "nan", "valid_ppl": "inf"}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines + odd)) + '\n{"step": 7')


class Page(HTMLParser):
    """Collects what the tests ask for, and checks that every element is closed in its turn."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]


MODELS = {
    "hmm": lambda: make_hmm(7),
    "one state": lambda: make_hmm(1),
    "two states": lambda: make_hmm(2),
    "many states": lambda: make_hmm(45, seed=1),
    "classes": make_classes,
    "unigram": lambda: NGram.fit(Vocabulary(WORDS, [1] * len(WORDS)), split_of(WORDS), 1),
    "trigram": lambda: NGram.fit(Vocabulary(WORDS, [1] * len(WORDS)), split_of(WORDS), 3),
}


def split_of(words: list[str]) -> Split:
    tokens = np.arange(len(words), dtype=np.int32)
    ends = np.array([0, len(words)])
    return Split(tokens, ends, ends)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return MODELS[request.param]()


@pytest.mark.parametrize("metrics", [True, False])
def test_page_is_whole_and_needs_nothing_else(model: LanguageModel, metrics: bool, tmp_path: Path) -> None:
    if metrics:
        write_metrics(tmp_path)
    path = write_report(tmp_path, model, make_scores(model))
    source = path.read_text(encoding="utf-8")
    page = Page(source)
    assert page.open == []
    assert path == tmp_path / "report.html"
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "img", "iframe", "u", "object"})
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"id": "explorer-data", "type": "application/json"}, {"type": "module"}]
    assert not re.search(r"https?:|url\(|@import|src=", source.replace(f'"{SVG["xmlns"]}"', ""))
    assert not re.search(r"\bnan\b|\binf\b", source, re.IGNORECASE)
    assert ("polyline" in {tag for tag, _ in page.tags}) == metrics
    ids = set(page.values("id"))
    assert {link.removeprefix("#") for link in page.values("href")} <= ids
    ElementTree.fromstring(source.removeprefix("<!DOCTYPE html>"))


@pytest.mark.parametrize("error", [MemoryError(), KeyError("x"), RuntimeError("odd"), TrellisError("No.")])
def test_a_report_without_its_explorer(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails after training must not lose the report."""

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr("trellis.explore.embedded.explorer_section", fail)
    page = write_report(tmp_path, make_hmm(2), Scores("", {})).read_text()
    assert "explorer-data" not in page
    assert Page(page).open == []
    assert "The report has no explorer" in caplog.text


def test_page_is_reproducible(tmp_path: Path) -> None:
    pages = set()
    for _ in range(2):
        model = make_hmm(5)
        pages.add(write_report(tmp_path, model, make_scores(model)).read_bytes())
    assert len(pages) == 1


def test_hostile_words_arrive_as_text(tmp_path: Path) -> None:
    model = make_hmm(7)
    page = Page(write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8"))
    shown = {summary.words[0][0] for summary in summarise_states(model, 40)}
    assert shown & set(HOSTILE)
    assert {word(token, 24) for token in shown} <= set(page.texts)
    assert 'corpus <u>"x"</u> & more' in page.texts


@pytest.mark.parametrize("tokenizer", ["characters", "words"])
def test_cloze_answers_are_the_model_s(tokenizer: str, tmp_path: Path) -> None:
    model = make_hmm(4, ["<eos>", "<unk>", "a", "b", "c", ","], seed=3, tokenizer=tokenizer)
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    page = ElementTree.fromstring(source.removeprefix("<!DOCTYPE html>"))
    quotes = [quote.text for quote in page.iter("blockquote")]
    assert quotes[:3] == model.sample(3, 40)
    (ranked,) = model.infill(quotes[3], 6, complete=True).gaps
    answers = [tuple(item.itertext()) for item in page.find(".//ol")]
    assert answers == [(token, f"{p:.3f}") for token, p in ranked]


@pytest.mark.parametrize("words", [["<eos>"], ["<eos>", *map(chr, range(0xC0, 0xF8))]])
def test_models_that_have_no_cloze(words: list[str], tmp_path: Path) -> None:
    model = make_hmm(2, words, tokenizer="bytes")
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    assert "Samples" in source
    assert "One word hidden" not in source


def test_results_mark_the_best(tmp_path: Path) -> None:
    model = make_hmm(3)
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    table = ElementTree.fromstring(re.search(r'<table class="results">.*?</table>', source).group())
    assert [cell.text for cell in table.iter("th")] == [COLUMNS[name].heading for name in NAMES]
    assert [cell.text for cell in table.iter("strong")] == [
        "387.6",
        "123.4",
    ]  # held-out splits only
    rows = [["".join(cell.itertext()) for cell in row.iter("td")] for row in table.iter("tr")][1:]
    assert rows[1] == ["bigram", "–", "14", "60.0", "∞", "–", "90,584"]
    assert rows[2][:4] == ["hmm", "3", f"{model.num_parameters():,}", "100.0"]


def test_state_table_and_heat_map_hold_the_numbers_of_the_model(tmp_path: Path) -> None:
    model = make_hmm(6, [*WORDS[:4], "a", "b", "c"])
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    summaries = summarise_states(model, 40, 8, 3)
    table = ElementTree.fromstring(re.search(r'<table class="states">.*?</table>', source).group())
    rows = table.find("tbody")
    assert [row.get("id") for row in rows] == [f"state-{summary.state}" for summary in summaries]
    for row, summary in zip(rows, summaries, strict=True):
        assert row[1].findtext(".//b") == percent(summary.occupancy)
        assert [span.get("title") for span in row[2]] == [f"{token}: {p:.3f}" for token, p in summary.words]
        shown = [(span.text, float(span.get("title").rsplit(" ", 1)[1])) for span in row[3].iter("span")]
        expected = merged(model, model.parts().transition.dense()[summary.state])[:3]
        assert [name for name, _ in shown] == [word(name, 24) for name, _ in expected]
        np.testing.assert_allclose([p for _, p in shown], [p for _, p in expected], rtol=0, atol=ROUNDING)
    picture = ElementTree.fromstring(re.search(r'<svg [^>]*class="heatmap".*?</svg>', source).group())
    probabilities = [float(title.text.rsplit(" ", 1)[1]) for title in picture.iter("title")]
    expected = model.parts().transition.dense().detach().numpy().ravel()
    visible = np.sort(expected[expected > ROUNDING])
    np.testing.assert_allclose(np.sort(probabilities), visible, rtol=0, atol=ROUNDING)


def merged(model: HMM, row: torch.Tensor) -> list[tuple[str, float]]:
    """p(next state), summed over the states with the same most probable word, by enumeration."""
    best = model.parts().emission.dense().argmax(0).tolist()
    totals: dict[str, float] = {}
    for state, p in enumerate(row.tolist()):
        name = model.vocab.words[best[state]]
        totals[name] = totals.get(name, 0.0) + p
    return sorted(totals.items(), key=lambda pair: -pair[1])


@torch.no_grad()
def test_classes_come_before_states(tmp_path: Path) -> None:
    """Shares, words and next classes, by enumeration over the states of each class."""
    model = make_classes()
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    page = ElementTree.fromstring(source.removeprefix("<!DOCTYPE html>"))
    rows = {row.get("id"): row for row in page.iter("tr") if (row.get("id") or "").startswith("class-")}
    share, dense = model.occupancy().double().numpy(), model.parts().transition.dense().double().numpy()
    emission = model.parts().emission.dense().exp().double().numpy()  # [V, K]
    members = [range(0, 2), range(2, 6), range(6, 12)]
    order = sorted(range(3), key=lambda c: -share[list(members[c])].sum())
    assert list(rows) == [f"class-{c}" for c in order]
    for c, states in enumerate(map(list, members)):
        row, within = rows[f"class-{c}"], share[states] / share[states].sum()
        assert row.findtext(".//b") == percent(share[states].sum())
        words = {span.text: float(span.get("title").rsplit(" ", 1)[1]) for span in row[2]}
        own = {name: p for name, p in zip(model.vocab.words, emission[:, states] @ within, strict=True) if p > 0}
        assert words == pytest.approx(own, abs=ROUNDING)
        after = within @ dense[states]
        shown = [float(span.get("title").rsplit(" ", 1)[1]) for span in row[3].iter("span")]
        expected = sorted((after[list(other)].sum() for other in members), reverse=True)
        np.testing.assert_allclose(shown, expected, rtol=0, atol=ROUNDING)
    inner = [row.get("id") for row in page.iter("tr") if (row.get("id") or "").startswith("state-")]
    assert len(inner) == len(set(inner)) == 12
    assert "6 states, 6 in use" in source


def test_run_can_be_repeated_from_the_report(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('seed = 7\n[data]\nsource = "<i>"\n')
    model = make_hmm(2)
    page = Page(write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8"))
    for shown in ("trellis train '<b>'", "7", "a CPU", "torch 2.11", "3 epochs, 600 steps, 75 s"):
        assert shown in page.texts
    assert 'seed = 7\n[data]\nsource = "<i>"' in page.texts


def test_curves_end_where_the_metrics_end(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    curves = read_curves(tmp_path / "metrics.jsonl")
    assert curves.points == {
        "train": [(100.0 * n, 900.0 / n) for n in range(1, 6)],
        "valid": [(100.0 * n, 1000.0 / n) for n in (1, 3, 5)],
    }
    assert curves.steps_per_epoch == 200.0  # two epochs were complete at step 400
    assert [curves.seconds_at(step) for step in (0, 100, 250, 500)] == [0.0, 30.0, 75.0, 150.0]
    model = make_hmm(2)
    source = write_report(tmp_path, model, make_scores(model)).read_text(encoding="utf-8")
    picture = ElementTree.fromstring(re.search(r'<svg [^>]*class="curves broad".*?</svg>', source).group())
    labels = {"".join(label.itertext()) for label in picture.iter("text") if "label" in label.get("class", "")}
    assert labels == {"unigram 390.1", "train 180.0", "valid 200.0"}
    axis = [label.text for label in picture.find("g").iter("text")]
    for shown in ("0", "1", "2", "epoch", "60 s", "120 s", "elapsed time"):
        assert shown in axis
    train, valid = (
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in picture.iter("polyline")
    )
    assert (len(train), len(valid)) == (6, 4)
    assert train == sorted(train)
    assert valid[0][1] < valid[-1][1]  # pixels grow downwards, perplexity falls


@pytest.mark.parametrize("points", [0, 1, 5000])
def test_curves_of_any_length(points: int, tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "train_ppl": 50.0, "valid_ppl": None}) for n in range(points)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    model = make_hmm(2)
    source = write_report(tmp_path, model, Scores("", {})).read_text(encoding="utf-8")
    drawn = re.findall(r'polyline points="([^"]*)"', source)
    assert len(drawn) == 2 * (points > 0)  # for a screen and for a phone
    assert all(len(line.split()) <= 601 for line in drawn)


def test_order_joins_states_that_behave_alike() -> None:
    groups = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], 5))
    matrix = np.where(groups[:, None] == (groups[None] + 1) % 3, 0.19, 0.005)
    ordered = groups[likeness_order(matrix)]
    assert np.count_nonzero(np.diff(ordered)) == 2


@given(st.lists(st.floats(0, 400), max_size=12).map(sorted))
def test_spread_keeps_order_and_distance(heights: list[float]) -> None:
    moved = spread(heights, 18)
    assert len(moved) == len(heights)
    assert all(b - a >= 18 - 1e-9 for a, b in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights), abs=1e-6)


@given(st.floats(1e-3, 1e12), st.floats(1.02, 1e6))
def test_ticks_lie_inside_and_are_few(low: float, ratio: float) -> None:
    high = low * ratio
    for ticks in (linear_ticks(low, high), log_ticks(low, high)):
        assert 2 <= len(ticks) <= 9
        assert ticks == sorted(ticks)
        assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)


@given(st.text())
def test_any_text_survives_as_text(raw: str) -> None:
    markup = element("p", raw, title=raw)
    parsed = Page(markup)
    assert [tag for tag, _ in parsed.tags] == ["p"]
    shown = ElementTree.fromstring(element("p", text(raw), title=text(raw)))
    assert (shown.text or "") == shown.get("title") == text(raw)


@given(st.text(), st.integers(4, 40))
def test_words_are_visible_and_short(token: str, longest: int) -> None:
    shown = word(token, longest)
    assert shown.isprintable()
    assert " " not in shown
    assert len(shown) <= longest


def test_numbers_have_a_sign_for_what_is_missing() -> None:
    assert [perplexity(value) for value in (None, math.nan, math.inf, 1234.56)] == ["–", "–", "∞", "1,234.6"]
    assert [percent(share) for share in (0.0, 0.5, 0.00012)] == ["0.0%", "50.0%", "0.012%"]
    assert Column("x", perplexity, min).best_of([math.nan, 3.0, 2.0, 2.0]) == {2, 3}
    assert Column("x", perplexity, min).best_of([2.0]) == set()
