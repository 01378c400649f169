"""The explorer without a server: one script, the section of the report, and the widget's messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from queue import SimpleQueue
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import trellis
from explore.browser import chromium, page_of, violations
from trellis.errors import TrellisError
from trellis.explore import offline
from trellis.explore.bundle import IMPORT, bundle, read_static
from trellis.explore.embedded import ABOUT, PACKED, example_sentences, explorer_section, in_script, most_sentences
from trellis.explore.explorer import Explorer
from trellis.explore.views import views_of
from trellis.explore.widget import in_path, reply, widget
from trellis.report.page import write_report
from trellis.tasks.scores import Scores

LARGEST = 5_000_000  # bytes of a report
SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sees"] * 15
HOSTILE = ["</script><script>alert(1)</script>", "]]>", "<!--", "\x1b[31m"]


@pytest.fixture(scope="module")
def model() -> Any:
    return trellis.train(SENTENCES + [" ".join(HOSTILE)] * 9, states=4, epochs=1, device="cpu").model


def data_of(section: str) -> Any:
    return json.loads(re.search(r'id="explorer-data"[^>]*>(.*?)</script>', section, re.DOTALL).group(1))


def test_a_bundle_has_every_module_once() -> None:
    files = {path.name for path in (Path(trellis.__file__).parent / "explore" / "static").glob("*.js")} - {"main.js"}
    script = bundle("embedded")
    assert sorted(re.findall(r"^const module_(\w+) = ", script, re.MULTILINE)) == sorted(name[:-3] for name in files)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    for name in files:
        written = re.findall(r"^import\b", read_static(name), re.MULTILINE)
        assert len(written) == len(IMPORT.findall(read_static(name))), f"{name} has an import of another form"
    assert "innerHTML" not in script
    assert "</script" not in script
    assert "]]>" not in script


def test_the_section_is_text_in_html_and_in_xml(model: Any, tmp_path: Path) -> None:
    section = explorer_section(model, tmp_path)
    found = data_of(section)
    assert section.count("<script") == section.count("</script>") == 2
    assert next(ElementTree.fromstring(section).iter("script")).text.startswith('{"css":')
    assert set(HOSTILE) & set(found["table"][PACKED]["words"])
    assert json.loads(in_script(HOSTILE)) == HOSTILE


def test_every_state_and_sentence_is_there(model: Any, tmp_path: Path) -> None:
    table = data_of(explorer_section(model, tmp_path))["table"]
    assert len(table[PACKED]["x"]) == len(table[PACKED]["outgoing"]["ids"]) // table[PACKED]["outgoing"]["n"] == 4
    sentences = table[ABOUT]["models"][0]["examples"]
    assert sentences == example_sentences(views_of(model))
    for text in sentences:
        asked = json.dumps({"model": 0, "text": text}, ensure_ascii=False, separators=(",", ":"))
        assert table[f"POST /api/smooth {asked}"]["log_prob"] == pytest.approx(model.log_prob(text), rel=1e-3)


def test_sentences_of_the_validation_text() -> None:
    found = example_sentences(views_of(trellis.load("demo")))
    assert len(found) == len(set(found)) == 20
    assert all("<unk>" not in text for text in found)


def test_a_report_works_from_a_file(tmp_path: Path) -> None:
    demo = trellis.load("demo")
    file = write_report(tmp_path, demo, Scores("", {}))
    assert file.stat().st_size < LARGEST
    with chromium() as browser, page_of(browser) as page:
        page.goto(file.as_uri())
        page.locator("#explorer .cells circle").first.wait_for()
        assert page.get_by_text("Typing needs the server: trellis explore RUN").first.is_visible()
        page.get_by_label("Example sentences").select_option(index=5)
        page.wait_for_url("**#/sentence?text=**")
        page.locator("#explorer nav a", has_text="States").click()
        page.locator("#explorer .states tbody tr").first.wait_for()
        page.get_by_label("Search by word").fill("list")
        page.wait_for_url("**query=list**")
        page.locator("#explorer .states tbody a", has_text="list").first.click()
        page.locator("#explorer .relevance li").first.wait_for()
        page.locator("#explorer nav a", has_text="The map").click()
        page.locator("#explorer .map .entry").first.wait_for()
        assert violations(page, "#explorer") == []
        page.locator("#explorer nav a", has_text="A sentence").click()
        page.locator("#explorer #sentence").fill("not among them")
        page.locator("#explorer .problem", has_text="needs the server").wait_for()


def test_messages_are_answered_as_requests(model: Any) -> None:
    explorer = Explorer([views_of(model)])
    asked = {"id": 3, "method": "POST", "path": "/api/score", "body": {"model": 0, "text": "the cat"}}
    assert reply(explorer, asked)["answer"]["log_prob"] == pytest.approx(model.log_prob("the cat"))
    state = reply(explorer, {"id": 4, "method": "GET", "path": "/api/states/2?model=0", "body": None})
    assert (state["id"], state["answer"]["id"]) == (4, 2)
    json.dumps(state, allow_nan=False)


@pytest.mark.parametrize(
    "asked",
    [
        {"id": 1, "method": "GET", "path": "/api/nothing"},
        {"id": 1, "method": "GET", "path": "/api/states/9?model=0"},
        {"id": 1, "method": "POST", "path": "/api/score", "body": {"model": 7, "text": "a"}},
        {"id": 1, "method": "DELETE", "path": "/api/about"},
        {"id": 1, "path": "http://[", "method": "GET"},
        "text",
    ],
)
def test_wrong_messages_are_refused_in_one_sentence(asked: Any, model: Any) -> None:
    answer = reply(Explorer([views_of(model)]), asked)
    assert answer["error"].endswith(".")
    assert "answer" not in answer


def test_an_unexpected_failure_is_answered_too(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explorer, "answer", lambda *given: {}["lost"])
    answer = reply(Explorer([views_of(model)]), {"id": 1, "method": "GET", "path": "/api/about"})
    assert answer == {"id": 1, "error": "The question failed; the log has the reason."}


def test_fields_in_paths() -> None:
    assert in_path("/api/states/{id}", "/api/states/17") == {"id": "17"}
    assert in_path("/api/states/{id}", "/api/states") is None
    assert in_path("/api/states", "/api/map") is None


def test_the_report_of_a_large_model_says_what_is_left_out(model: Any, tmp_path: Path) -> None:
    found = str(explorer_section(model, tmp_path, 3_000))
    assert re.search(r"Each state is stored with its \d+ most probable words", found)


def test_states_that_do_not_fit_into_a_report(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "packed", lambda *given: None)
    found = str(explorer_section(model, tmp_path))
    assert "Its states are too many for a report." in found


def test_very_large_models_without_classes_have_fewer_sentences(model: Any) -> None:
    assert most_sentences(model) == 20
    assert most_sentences(SimpleNamespace(num_states=100_000)) == 1  # type: ignore[arg-type]
    assert most_sentences(SimpleNamespace(num_states=100_000, params=SimpleNamespace(support=1))) == 20  # type: ignore[arg-type]


def test_the_widget_sends_answers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed: pip install -e '.[widget]'")
    shown = model.explore(trellis.train(SENTENCES, family="bigram").model)
    sent: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(shown, "send", lambda answer: sent.put((current_thread(), answer)))
    shown._handle_custom_msg({"id": 1, "method": "GET", "path": "/api/about", "body": None}, [])
    thread, answer = sent.get(timeout=60)
    assert thread is not main_thread()
    assert [each["family"] for each in answer["answer"]["models"]] == ["hmm", "ngram"]
    assert shown.css == read_static("explorer.css")
    assert "export default { render: module_embedded.render };" in str(shown._esm)


def test_the_widget_shows_the_page(model: Any) -> None:
    explorer = Explorer([views_of(model)])
    script = f"{bundle('embedded')}globalThis.render = module_embedded.render;"
    with chromium() as browser, page_of(browser) as page:
        page.expose_function("answer", lambda asked: reply(explorer, asked))
        page.set_content("<main id='cell'></main>")
        page.add_script_tag(content=script, type="module")
        page.wait_for_function("typeof globalThis.render === 'function'")
        page.evaluate(
            """css => {
              let heard;
              const send = async (asked) => heard(await answer(asked));
              globalThis.render({ el: document.getElementById("cell"),
                model: { on: (_, listener) => { heard = listener; }, get: () => css, send } });
            }""",
            read_static("explorer.css"),
        )
        page.locator("#cell .cells circle").first.wait_for()
        page.locator("#cell #sentence").fill("the cat runs")
        page.locator("#cell .summary", has_text=f"log p = {model.log_prob('the cat runs'):.2f}").wait_for()
        page.locator("#cell nav a", has_text="States").click()
        page.locator("#cell .states tbody tr").first.wait_for()
        assert page.url == "about:blank"


def test_without_anywidget_there_is_one_sentence(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anywidget", None)
    with pytest.raises(TrellisError, match=r"needs anywidget: pip install 'trellis-hmm\[widget\]'"):
        widget(model)
