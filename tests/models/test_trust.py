"""Text and paths from files that the user did not write: nothing controls the terminal or opens other files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import trellis
from trellis.cli.main import main
from trellis.corpus.cache import TRUSTED, cache_entries, cache_folder, clear_cache
from trellis.errors import TrellisError
from trellis.models.files import FILE
from trellis.storage import confined, load_tensors, read_metadata, save_tensors

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
LINES = ["the cat sees a dog", "a dog sees the cat", "the dog"] * 20
TAGGED = [[("the", "D"), ("cat", "N")], [("a", "D"), ("dog", "N")]] * 20


def change(file: Path, **values: Any) -> None:
    """Replace entries of the header of a model file; dicts are merged with the JSON that is there."""
    header, tensors = read_metadata(file), load_tensors(file)
    for key, value in values.items():
        header[key] = json.dumps(json.loads(header[key]) | value) if isinstance(value, dict) else value
    save_tensors(file, tensors, header)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bigram model of a text in another folder, from somebody else's machine."""
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "secret" / "text.txt"
    text.parent.mkdir()
    text.write_text("\n".join(LINES))
    trellis.train(str(text), family="bigram", run=tmp_path / "run")
    clear_cache()
    return tmp_path / "run"


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def command(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("key", ["family", "schema", "settings", "vocab", "about"])
def test_messages_escape_metadata(run: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(run / FILE, **{key: ESCAPE})
    assert command("info", str(run)) == 2
    found = capsys.readouterr()
    assert harmless(found.err + found.out)
    with pytest.raises(TrellisError) as caught:
        trellis.load(run)
    assert str(caught.value).isprintable()


def test_names_of_tensors_and_settings_are_escaped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, tensors = read_metadata(run / FILE), load_tensors(run / FILE)
    save_tensors(run / FILE, tensors | {ESCAPE: tensors["log_probs"]}, header)
    assert command("info", str(run)) == 2
    assert "log_probs" not in (shown := capsys.readouterr().err)
    assert harmless(shown)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_escapes_metadata(run: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    change(run / FILE, about={"corpus": ESCAPE, "scores": {ESCAPE: 1.0}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        assert command("info", str(run), *options) == 0
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert harmless(shown)
    assert repr(trellis.load(run)).isprintable()
    if options:
        assert json.loads(shown)["corpus"] == ESCAPE


def test_log_messages_are_escaped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])
        command("info", str(run))
        logging.getLogger("trellis").warning("the file %s", ESCAPE)
    shown = capsys.readouterr().err
    assert "owned" in shown
    assert harmless(shown)


def test_a_text_that_only_the_model_names_is_not_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run.parent / "secret" / "text.txt"
    for arguments in (["eval", str(run)], ["eval", str(run), "--ngram"], ["eval", str(run), "--open"]):
        assert command(*arguments) == 2
        assert "--data" in capsys.readouterr().err
    assert not cache_entries()
    with pytest.raises(TrellisError, match="Only the model file names"):
        trellis.evaluate(run)
    assert trellis.evaluate(run, text).perplexity > 1
    assert trellis.evaluate(run).perplexity > 1  # now that the user has named it
    clear_cache()
    assert not (cache_folder() / TRUSTED).exists()
    with pytest.raises(TrellisError, match="Only the model file names"):
        trellis.evaluate(run)


def test_a_text_of_ones_own_training_is_read(run: Path) -> None:
    text = run.parent / "secret" / "text.txt"
    trellis.train(str(text), family="bigram", run=run.parent / "own")
    assert trellis.evaluate(run.parent / "own").perplexity > 1


def test_tagged_text_that_only_the_model_names_is_not_read(tmp_path: Path, run: Path) -> None:
    trellis.train(TAGGED, family="crf", run=tmp_path / "tagger")
    file = tmp_path / "own.conll"
    file.write_text("the D\ncat N\n\n")
    change(tmp_path / "tagger" / FILE, about={"data": {"source": str(file)}})
    with pytest.raises(TrellisError, match="Only the model file names"):
        trellis.evaluate(tmp_path / "tagger")


@pytest.mark.parametrize("data", [{"nonsense": 1}, {"source": 3}, {"source": "/x", "valid_fraction": 7.0}])
def test_data_options_of_a_model_are_checked(run: Path, data: dict[str, Any]) -> None:
    change(run / FILE, about={"data": data})
    with pytest.raises(TrellisError, match=r"data\."):
        trellis.evaluate(run)


def test_an_order_of_batches_that_is_unknown(run: Path) -> None:
    change(run / FILE, about={"order": "backwards"})
    with pytest.raises(TrellisError, match="order of batches"):
        trellis.evaluate(run, LINES)


@pytest.mark.parametrize("name", ["../encoder.txt", "/etc/passwd", "link.txt", "a/../../encoder.txt"])
def test_a_tagger_opens_only_files_in_its_folder(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "encoder.txt"
    outside.write_text("1 2\nthe 0.5 0.5\n")
    inside = tmp_path / "tagger"
    trellis.train(TAGGED, family="crf", representations=f"vectors:{outside}", run=inside)
    assert trellis.load(inside).tag([["the", "dog"]]) == [["D", "N"]]
    (inside / "link.txt").symlink_to(outside)
    (inside / "a").mkdir()
    change(inside / FILE, settings={"encoders": [["vectors", name]]})
    with pytest.raises(TrellisError, match="is not in that folder"):
        trellis.load(inside)


def test_representations_of_another_size_are_noticed(tmp_path: Path) -> None:
    vectors = tmp_path / "encoder.txt"
    vectors.write_text("1 2\nthe 0.5 0.5\n")
    trellis.train(TAGGED, family="crf", representations=f"vectors:{vectors}", run=tmp_path / "tagger")
    (tmp_path / "tagger" / "encoder-0.txt").write_text("1 3\nthe 0.5 0.5 0.5\n")
    with pytest.raises(TrellisError, match="not those it was trained with"):
        trellis.load(tmp_path / "tagger")


@pytest.mark.parametrize("name", [3, None, ["x"], "../x"])
def test_confined_paths(tmp_path: Path, name: Any) -> None:
    with pytest.raises(TrellisError, match="not in that folder"):
        confined(tmp_path, name)
