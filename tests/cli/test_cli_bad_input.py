"""Bad input of every command: one sentence and exit code 2."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from running import run

ARPA = "\\data\\\nngram 1=2\n\\1-grams:\n-1\t</s>\n-0.1\tcat\n\\end\\\n"


def broken_gzip(folder: Path) -> Path:
    (folder / "broken.txt.gz").write_bytes(b"\x1f\x8b\x08\x00junk")
    return folder / "broken.txt.gz"


def not_utf8(folder: Path) -> Path:
    (folder / "latin.txt").write_bytes("café\n".encode("latin-1") * 9)
    return folder / "latin.txt"


def empty(folder: Path) -> Path:
    (folder / "empty.txt").write_text("")
    return folder / "empty.txt"


def one_word(folder: Path) -> Path:
    (folder / "one.txt").write_text("a a a\n" * 9)
    return folder / "one.txt"


def arpa(folder: Path, cut: str = "") -> Path:
    (folder / "m.arpa").write_text(ARPA.removesuffix(cut + "\n"))
    return folder / "m.arpa"


def bad_config(folder: Path) -> Path:
    (folder / "bad.toml").write_text("[train]\nlerning = 1\n")
    return folder / "bad.toml"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (lambda d: ["train", "--data", d / "none.txt"], "No file, folder or built-in corpus"),
        (lambda d: ["train", "--data", not_utf8(d)], "UTF-8"),
        (lambda d: ["train", "--data", empty(d)], "empty"),
        (lambda d: ["train", "--data", broken_gzip(d)], "gz"),
        (lambda d: ["train", bad_config(d)], "train.lerning"),
        (lambda d: ["train", "--set", "model.family=hmn"], "did you mean 'hmm'"),
        (lambda d: ["train", "--model", "ngram", "--set", "model.order=0"], "must be at least 1"),
        (lambda d: ["train", "--model", "ngram", "--set", "model.order=10"], "at most 9"),
        (lambda d: ["eval", arpa(d)], "choose one with --data"),
        (lambda d: ["info", arpa(d, "\\end\\")], "line 5: the file ends without"),
        (lambda d: ["export", d / "run", "-o", d / "x", "--to", "arpa"], "its formats are numpy, hmmlearn"),
        (lambda d: ["export", d / "run", "-o", d / "x.arpa"], "use .npz (numpy) or .pkl or .pickle (hmmlearn)"),
        (lambda d: ["export", d / "run", "-o", d / "x.npz", "--to", "hmmlearn"], "use .pkl or .pickle (hmmlearn)"),
        (lambda d: ["export", arpa(d), "-o", d / "x.npz"], "use .arpa or .arpa.gz (arpa)"),
        (lambda d: ["export", arpa(d), "-o", d / "x", "--to", "numpy"], "its formats are arpa"),
        (lambda d: ["train", "--set", "train.learner=adam"], "train.learner"),
        (lambda d: ["train", "--set", "batches.order=random"], "batches.order"),
        (lambda d: ["train", "--set", "model.states=-1"], "must be at least 0"),
        (lambda d: ["train", "--device", "mps"], "use auto, cpu or cuda"),
        (lambda d: ["train", "--set", "data.test_fraction=0"], "has no test split"),
        (lambda d: ["train", "--device", "cuda"], "finds no GPU"),
        (lambda d: ["cluster"], "Nothing to cluster"),
        (lambda d: ["cluster", d / "text.txt"], "The number of classes is missing"),
        (lambda d: ["cluster", d / "text.txt", "-c", "99"], "99 classes are more"),
        (lambda d: ["cluster", "--show", d / "text.txt"], "line 1"),
        (lambda d: ["cluster", one_word(d), "-c", "2"], "only one word"),
        (lambda d: ["info", d], "There is no model"),
        (lambda d: ["info", not_utf8(d)], "latin.txt"),
        (lambda d: ["eval", d / "run", "--split", "dev"], "has no dev split"),
        (lambda d: ["eval", d / "run", "--plot", d / "x.png"], "ends in .svg"),
        (lambda d: ["eval", d / "run", "--interpolate"], "at least two models"),
        (lambda d: ["train", "--model", "lstm", "--set", "model.dim=0"], "model.dim is 0"),
        (lambda d: ["train", "--model", "lstm", "--set", "model.tying=some"], "model.tying is 'some'"),
        (lambda d: ["infill", d / "run", "a ___", "", "the cat"], "Sentence 3 has no gap"),
        (lambda d: ["embed", d / "run", "the cat", "-o", d / "x.xls"], "unsupported suffix"),
        (lambda d: ["embed", d / "run", "the cat", "-o", d / "x.npy", "--top", "2"], "not states"),
        (lambda d: ["score", d / "run", "--input", d / "none.txt"], "Cannot read"),
        (lambda d: ["score", d / "run", "a b", "--input", d / "text.txt"], "not both"),
        (lambda d: ["score", d / "run", "--input", not_utf8(d)], "line 1"),
        (lambda d: ["score", d / "run", "--input", empty(d)], "No text given"),
        (lambda d: ["score", d / "run", "--input", d / "text.txt", "--reader", "fastq"], "did you mean 'fasta'"),
        (lambda d: ["score", d / "run", "--input", d / "text.txt", "--reader", "csv"], "needs --column"),
        (lambda d: ["score", d / "run", "--input", d / "text.txt", "--reader", "fasta"], "line 1 precedes"),
        (lambda d: ["draw", d / "run", "a cat", "a dog", "-o", d / "x.svg"], "one sentence, not 2"),
        (lambda d: ["embed", d / "run", "the cat", "-o", d / "run"], "run"),
    ],
)
def test_bad_input_gives_one_sentence(
    words,
    sentence: str,
    model: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sentence == "finds no GPU":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = words(tmp_path)
    if command[0] == "train":
        command += ["--run", tmp_path / "new", "--quiet"]
        command += [] if "--data" in command else ["--data", text]
    assert run(*command) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "-n", "0"],
        ["infill", "a ___", "--samples", "-1"],
        ["states", "-n", "x"],
        ["sample", "--seed", str(1 << 64)],
    ],
)
def test_numbers_out_of_range(words: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words[0], model, *words[1:]) == 2
    assert "is not an integer" in capsys.readouterr().err


def test_not_utf8_on_standard_input(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    assert run("score", model) == 2
    assert "not UTF-8" in capsys.readouterr().err
