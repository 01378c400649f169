"""The explorer in a real browser: every view clicked through on the demo model, without an error or a serious
violation of accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")

import trellis
from explore.browser import chromium, page_of, served, violations
from explore.test_later import GAPS, softmax_model
from trellis.families.hmm import views as hmm_views
from trellis.models.files import save_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that the demo's corpus documents
SENTENCE = "the function returns a new list"
HOSTILE = ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "<img/onerror=alert(2)>", "\u202eabc", "&lt;b&gt;"]
TAGGED = [[("the", "D"), ("cat", "N"), ("sees", "V")], [("a", "D"), ("dog", "N"), ("runs", "V")]] * 20
SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sees"] * 15
FAMILIES: dict[str, tuple[Any, dict[str, Any], str]] = {  # data, options, and what the first view shows
    "ngram": (SENTENCES, {"order": 2}, "bits per word"),
    "lds": (SENTENCES, {"dim": 2, "epochs": 1, "horizon": 2, "blocks": 2}, "dog"),
    "fhmm": (SENTENCES, {"layers": 2, "states": 2, "epochs": 1}, "bits per word"),
    "pcfg": (SENTENCES, {"nonterminals": 3, "preterminals": 4, "epochs": 1}, "log p(tree, words)"),
    "lstm": (SENTENCES, {"dim": 8, "epochs": 1}, "bits per word"),
    "rnn": (SENTENCES, {"dim": 8, "epochs": 1}, "bits per word"),
    "feedforward": (SENTENCES, {"dim": 8, "epochs": 1}, "bits per word"),
    "hmm-tagger": (TAGGED, {"states": 4, "epochs": 1}, "N"),
    "crf": (TAGGED, {"iterations": 3}, "N"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def demo(browser: Any) -> Iterator[str]:
    with served("demo") as address:
        yield address


@pytest.fixture(scope="module")
def page(browser: Any, demo: str) -> Iterator[Any]:
    with page_of(browser) as opened:
        yield opened


def go(page: Any, address: str, hash_: str, until: str) -> Any:
    """Open a view, and wait until something is visible."""
    page.goto(f"{address}{hash_}")
    page.locator(until).first.wait_for()
    return page


def test_the_trellis_follows_the_text(page: Any, demo: str) -> None:
    go(page, demo, "#/sentence", ".cells circle")
    page.fill("#sentence", SENTENCE)
    page.locator(".trellis .words button", has_text="list").wait_for()
    shown = page.locator(".trellis .words > *").all_inner_texts()
    assert shown == [*SENTENCE.split(), "<eos>"]
    model = trellis.load("demo")
    assert f"log p = {model.log_prob(SENTENCE):.2f}" in page.locator(".summary").inner_text()
    bits = [float(text) for text in page.locator(".surprisal small").all_inner_texts()]
    assert bits == pytest.approx(-model.token_log_probs(SENTENCE) / 0.6931, abs=0.06)
    assert page.url.endswith(f"#/sentence?text={SENTENCE.replace(' ', '+')}")
    assert page.locator(".rings circle").count() == 7
    assert violations(page) == []


def test_numbers_by_pointer_and_by_keyboard(page: Any, demo: str) -> None:
    go(page, demo, f"#/sentence?text={SENTENCE}", ".cells circle")
    page.locator(".cells circle").first.hover(force=True)
    assert re.search(r"“\w+”, state \d+ \(.+\): [\d.e-]+", page.locator(".plot .tip").inner_text())
    page.locator(".plot").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    tip = page.locator(".plot .tip").inner_text()
    assert tip.startswith("“function”")
    assert page.locator("[role=status]").inner_text() == tip
    page.keyboard.press("Enter")
    page.locator(".relevance li").first.wait_for()
    assert "#/state?id=" in page.url


def test_a_word_becomes_a_gap_and_another_word(page: Any, demo: str) -> None:
    go(page, demo, f"#/sentence?text={SENTENCE}", ".cells circle")
    page.locator(".trellis .words button", has_text="returns").click()
    page.locator(".panel .predictions li").first.wait_for()
    page.get_by_role("button", name="Make it a gap").click()
    page.locator(".trellis .words .gap").wait_for()
    assert page.input_value("#sentence") == "the function ___ a new list"
    first = page.locator(".predictions[aria-label='Words for gap 1'] li").first
    first.wait_for()
    infilled = trellis.load("demo").infill("the function ___ a new list", complete=True)
    best = infilled.gaps[0][0]
    assert f"log p = {infilled.log_prob:.2f}" in page.locator("p.best").inner_text()
    assert first.locator(".word").inner_text() == best[0]
    first.locator("button.word").click()
    assert first.locator(".carried a").count() > 0
    first.get_by_role("button", name="use").click()
    page.locator(".trellis .words button", has_text=best[0]).first.wait_for()
    assert page.input_value("#sentence") == f"the function {best[0]} a new list"


def test_a_state_and_its_slider(page: Any, demo: str) -> None:
    go(page, demo, "#/state?id=17", ".relevance li")
    before = page.locator(".relevance .word").all_inner_texts()
    page.locator("input[type=range]").fill("1")
    by_probability = page.locator(".relevance .word").all_inner_texts()
    model = trellis.load("demo")
    column = model.parts().emission.dense()[:, 17]
    assert by_probability[:5] == [word for word, _ in model.rank(column, 5)]
    assert before != by_probability
    assert "lambda=1" in page.url
    assert violations(page) == []
    page.locator("#outgoing + ol a, section:has(#outgoing) a").first.click()
    page.wait_for_url(lambda url: "id=17" not in url)


def test_states_are_searched_and_paged(page: Any, demo: str) -> None:
    go(page, demo, "#/states", ".states tbody tr")
    assert page.locator(".states tbody tr").count() == 50
    page.get_by_role("button", name="Next").click()
    page.get_by_text("51–96 of 96").wait_for()
    page.get_by_label("Search by word").fill("list")
    page.wait_for_url("**query=list**")
    page.locator(".states tbody tr", has_text="list").first.wait_for()
    assert violations(page) == []


def test_the_map(page: Any, demo: str) -> None:
    go(page, demo, "#/map", ".map canvas")
    page.locator(".map .entry").first.wait_for()
    assert violations(page) == []
    canvas = page.locator("canvas")
    canvas.focus()
    page.wait_for_timeout(100)
    assert canvas.evaluate("c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0)")
    for key in ("+", "ArrowLeft", "-", "0"):
        page.keyboard.press(key)
    page.locator(".map .entry").first.click()
    page.get_by_role("button", name="Back to all").wait_for()
    page.get_by_label("Search by word").fill("list")
    page.get_by_role("heading", name="States that emit “list” most").wait_for()
    page.locator(".map a.entry").first.click()
    page.locator(".relevance li").first.wait_for()


@pytest.mark.parametrize("ask", ["infill", "generate", "predict", "score", "sample"])
def test_every_answer_has_a_link_and_a_command(ask: str, page: Any, demo: str) -> None:
    go(page, demo, f"#/questions?ask={ask}", ".answer .reproduce")
    page.get_by_role("button", name="Ask").click()
    page.locator(".answer .reproduce").wait_for()
    answer, link = page.locator(".answer").inner_text(), page.locator(".reproduce a").get_attribute("href")
    assert page.locator(".reproduce code").inner_text().split()[0] in ("trellis", "python")
    assert violations(page) == []
    go(page, demo, "#/states", ".states tbody tr")
    go(page, demo, link, ".answer .reproduce")
    assert page.locator(".answer").inner_text() == answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("hash_", ["#/sentence", "#/state?id=3", "#/map", "#/questions?ask=generate"])
def test_narrow_and_dark(hash_: str, scheme: str, browser: Any, demo: str) -> None:
    with page_of(browser, color_scheme=scheme, viewport={"width": 420, "height": 800}) as page:
        go(page, demo, hash_, ".cells circle, .relevance li, .map .entry, .answer .reproduce")
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert violations(page) == []


def test_two_models(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    trained = trellis.train(tmp_path / "text.txt", states=3, epochs=2, device="cpu", run=tmp_path / "hmm").model
    trellis.train(tmp_path / "text.txt", family="bigram", run=tmp_path / "bigram")
    with served(tmp_path / "hmm", tmp_path / "bigram") as address, page_of(browser) as page:
        go(page, address, "#/sentence?text=the+cat+runs", ".surprisal .two")
        assert violations(page) == []
        go(page, address, "#/compare?text=the+cat+runs", ".bits .two")
        shown = [float(text.split()[0]) for text in page.locator(".bits small").all_inner_texts()]
        assert shown == pytest.approx(-trained.token_log_probs("the cat runs") / 0.6931, abs=0.06)
        page.locator(".differences tbody tr").first.wait_for()
        assert violations(page) == []
        go(page, address, "#/training", ".chart polyline")
        for axis in page.get_by_label("Horizontal axis").locator("option").all_inner_texts():
            page.get_by_label("Horizontal axis").select_option(label=axis)
            page.locator(".chart polyline").first.wait_for()
        assert violations(page) == []
        page.get_by_label("Model", exact=True).select_option("1")
        page.wait_for_url("**model=1**")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_has_a_blank_page(family: str, browser: Any, tmp_path: Path) -> None:
    data, options, first = FAMILIES[family]
    trellis.train(data, family=family, run=tmp_path / "run", device="cpu", **options)
    with served(tmp_path / "run") as address, page_of(browser) as page:
        go(page, address, "", "main .heading")
        page.locator("main").get_by_text(first).first.wait_for()
        links = page.locator("header nav a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert links
        for link in links:
            go(page, address, link, "main .heading")
            page.locator("main .loading").first.wait_for(state="detached")
            page.locator("main", has_text=re.compile(r"[\s\S]{41}")).wait_for()  # more than a heading and labels
            assert page.locator(".problem").all_inner_texts() == []
            assert violations(page) == []


def test_a_slow_answer_is_awaited(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmm_views, "AT_ONCE", 0)
    save_model(tmp_path / "model.safetensors", softmax_model())
    with served(tmp_path) as address, page_of(browser) as page:
        page.goto(f"{address}#/sentence?text={quote(GAPS)}")
        for gap in ("Gap 1", "Gap 2"):
            page.get_by_role("heading", name=gap).wait_for()
        page.locator(".cells circle").first.wait_for()
        assert "not proved" in page.locator("p.best").inner_text()
        assert page.locator(".waiting").count() == 0
        go(page, address, f"#/questions?ask=infill&text={quote(GAPS)}", ".answer .reproduce")
        assert violations(page) == []


def test_hostile_words_are_text(browser: Any, tmp_path: Path) -> None:
    lines = [f"{word} the cat {other}" for word in HOSTILE for other in HOSTILE] * 3
    model = trellis.train(
        [line.split() for line in lines], states=4, epochs=2, device="cpu", run=tmp_path / "run"
    ).model
    assert set(HOSTILE) <= set(model.vocab.words)
    with served(tmp_path / "run") as address, page_of(browser) as page:
        text = quote(" ".join(HOSTILE[:2]))
        go(page, address, f"#/sentence?text={text}", ".cells circle")
        assert "␛[31mred␛[0m" in page.locator(".trellis .words").inner_text()
        for hash_, shown in {
            "#/state?id=0": ".relevance li",
            "#/states": ".states tbody tr",
            "#/map": ".entry",
        }.items():
            go(page, address, hash_, shown)
            assert not set("\x1b\u202e") & set(page.locator("main").inner_text())
        go(page, address, "#/questions?ask=sample&n=20", ".answer .sentences li")
        assert "<script>alert(1)</script>" in page.locator(".answer").inner_text()
        assert page.locator("main script, main img").count() == 0


def test_errors_are_sentences(page: Any, demo: str, browser: Any) -> None:
    for name in ("nothing", "constructor", "__proto__"):
        go(page, demo, f"#/{name}", "main .heading")
        page.locator("main .note", has_text=f"has no view “{name}”").wait_for()
    with page_of(browser, expected="400 (Bad Request)") as other:  # browsers log failed requests
        go(other, demo, "#/state?id=9999", ".problem")
        assert other.locator(".problem").inner_text() == "There is no state 9999; the states are 0 to 95."
