"""The command line as a user meets it: every command, its JSON, its errors, and a training that is killed."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trellis
from running import parsed, run
from trellis.cli.main import find_commands
from trellis.storage import load_tensors

ARPA = "\\data\\\nngram 1=2\n\\1-grams:\n-1\t</s>\n-0.1\tcat\n\\end\\\n"
SMALL = ["--states", "4", "--set", "train.learner=em", "--set", "train.epochs=3", "--set", "batches.order=sentences"]


@pytest.fixture
def model(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A trained run."""
    run("train", "--data", text, "--run", tmp_path / "run", "--quiet", *SMALL)
    capsys.readouterr()
    return tmp_path / "run"


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command says to machines."""
    assert run(*words, "--json", "--quiet") == 0
    return parsed(capsys.readouterr().out, *words)


def test_train_leaves_model_metrics_results_and_report(model: Path) -> None:
    names = {"model.safetensors", "metrics.jsonl", "results.json", "report.html", "config.toml", "best.safetensors"}
    assert names <= {path.name for path in model.iterdir()}
    rows = json.loads((model / "results.json").read_text())["scores"]["rows"]
    assert [row["model"] for row in rows] == ["unigram", "bigram", "5-gram", "hmm + 5-gram", "hmm"]
    assert all(1 < row[split] < 100 for row in rows for split in ("valid", "test"))
    assert [row["train"] is None for row in rows] == [False, False, False, True, False]
    assert all(0 < row["bits_per_character"] < 8 for row in rows)
    assert "5-gram" in (model / "report.html").read_text()


def test_eval_gives_the_figure_of_the_training(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = json.loads((model / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", model)
    assert row["perplexity"] == pytest.approx(trained["test"])
    (row,) = answer(capsys, "eval", model, "--split", "train")
    assert row["perplexity"] == pytest.approx(trained["train"])


def test_eval_of_another_text_in_the_models_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("the dog sees\nthe zebra runs\n" * 20)
    (row,) = answer(capsys, "eval", model, "--data", other)
    by_hand = trellis.load(model).log_prob(other.read_text())
    assert row["log_likelihood"] == pytest.approx(by_hand, rel=1e-5)
    assert row["tokens"] == 160


def test_eval_compares_interpolates_and_draws(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "--model", "bigram", "--data", text, "--run", tmp_path / "bigram", "--quiet") == 0
    capsys.readouterr()
    common = ["eval", model, tmp_path / "bigram", "--interpolate", "--plot", tmp_path / "x.svg"]
    first, second, mixed = answer(capsys, *common, "--split", "valid")
    assert [row["order"] for row in (first, second, mixed)] == ["sentences", "streams", "mixed"]
    assert mixed["perplexity"] <= min(first["perplexity"], second["perplexity"]) * (1 + 1e-9)
    assert sum(mixed["weights"]) == pytest.approx(1)
    difference = second["against_first"]["perplexity"]
    assert difference["difference"] == pytest.approx(second["perplexity"] - first["perplexity"])
    assert difference["low"] <= difference["difference"] <= difference["high"]
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert run(*common) == 0
    assert "paired bootstrap" in capsys.readouterr().out


def test_eval_leaves_the_test_split_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = json.loads((model / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", model, "--no-test")
    assert row["perplexity"] == pytest.approx(trained["valid"])
    assert run("eval", model, "--no-test", "--split", "test") == 2
    assert "--no-test and --split test contradict each other" in capsys.readouterr().err


def test_train_leaves_the_test_split_alone(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid"):  # no test split at all
        (folder / f"{split}.txt").write_text(text.read_text())
    common = ["train", "--model", "bigram", "--data", folder, "--run", tmp_path / "run"]
    assert run(*common, "--quiet") == 2
    assert "no test split" in capsys.readouterr().err
    found = answer(capsys, *common, "--no-test", "--set", "eval.ngram=3")
    assert [row["model"] for row in found["scores"]["rows"]] == ["unigram", "3-gram", "bigram"]
    assert "test" not in found["scores"]["values"]
    assert found["scores"]["headline"] == "valid"
    assert "test" not in trellis.load(tmp_path / "run").about["scores"]


def test_eval_mixes_in_an_ngram_model_of_the_training_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, ngram, mixed = answer(capsys, "eval", model, "--ngram", "3", "--interpolate", "--open", "--no-test")
    assert ngram["model"] == "3-gram of the training text"
    assert mixed["family"] == "interpolated"
    assert mixed["perplexity"] <= min(alone["perplexity"], ngram["perplexity"]) * (1 + 1e-9)
    for row in (alone, ngram, mixed):
        assert row["bits_per_character"] == pytest.approx(
            -row["log_likelihood"] / math.log(2) / row["characters"], rel=1e-9
        )
        assert row["open_bits_per_character"] >= row["bits_per_character"]


def test_eval_prints_what_the_cache_and_dynamic_evaluation_chose(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("eval", model, "--cache", "--dynamic", "--no-test") == 0
    shown = capsys.readouterr().out
    assert re.search(r"\+ \d\.\d{3} cache", shown)
    assert re.search(r"B: gradient steps with rate \S+ and decay \S+\.", shown)
    assert re.search(r"C: the weight of a word in the cache decays by 0\.\d+ per token\.", shown)


def test_train_with_a_teacher(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    words = ["train", "--data", text, "--run", tmp_path / "taught", *SMALL, "--teacher", model]
    found = answer(capsys, *words, "--set", "train.teacher_tokens=500")
    assert found["scores"]["rows"][-1]["model"] == "hmm taught by hmm"
    assert len(list((tmp_path / "cache" / "samples").iterdir())) == 1


@pytest.mark.parametrize("family", ["feedforward", "lstm", "rnn"])
def test_networks_train_and_answer(family: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, small = tmp_path / family, ["--set", "model.dim=4", "--set", "train.epochs=1"]
    common = ["train", "--model", family, "--data", text, "--run", folder, "--quiet", *small]
    assert run(*common, "--set", "train.learner=em") == 2
    assert f"train.learner of the family {family} is 'em', which is not recognised" in capsys.readouterr().err
    assert run(*common) == 0
    capsys.readouterr()
    trained = json.loads((folder / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", folder)
    assert row["perplexity"] == pytest.approx(trained["test"], rel=1e-5)
    assert answer(capsys, "info", folder)["dim"] == 4
    assert len(answer(capsys, "sample", folder, "-n", "2")) == 2
    (scored,) = answer(capsys, "score", folder, "the cat")
    assert scored["log_prob"] == pytest.approx(trellis.load(folder).log_prob("the cat"))
    assert run("states", folder) == 2
    assert "no hidden states" in capsys.readouterr().err


def test_score_and_its_tokens(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffthe cat sees\r\na dog\n".encode())))
    rows = answer(capsys, "score", model, "--tokens")
    loaded = trellis.load(model)
    for row, line in zip(rows, ["the cat sees", "a dog"], strict=True):
        assert row["log_prob"] == pytest.approx(loaded.log_prob(line), abs=1e-5)
        assert sum(log_prob for _, log_prob in row["tokens"]) == pytest.approx(row["log_prob"], abs=1e-5)


def test_infill_sample_states_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (filled,) = answer(capsys, "infill", model, "the ___ runs", "-n", "50")
    assert sum(p for _, p in filled["gaps"][0]) == pytest.approx(1.0, abs=1e-4)
    assert len(answer(capsys, "sample", model, "-n", "3")) == 3
    assert answer(capsys, "sample", model) == answer(capsys, "sample", model)
    rows = answer(capsys, "states", model, "-n", "4")
    assert sum(row["occupancy"] for row in rows) == pytest.approx(1.0, abs=1e-4)
    assert answer(capsys, "info", model)["states"] == 4


def test_only_possible_words_are_shown(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloned = [
        "model.states=10",
        "model.emission=cloned",
        "model.params=neural",
        "model.dim=8",
        "train.learner=gradient",
    ]
    settings = [word for one in [*cloned, "train.epochs=1"] for word in ("--set", one)]
    assert run("train", "--data", text, "--run", tmp_path / "run", "--quiet", *settings) == 0
    capsys.readouterr()
    assert all(len(row["words"]) == 1 for row in answer(capsys, "states", tmp_path / "run"))


def test_resuming_another_model_names_what_differs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--run", model, "--resume", "--states", "9", "--quiet") == 2
    assert "was trained with model.states = 4, not 9" in capsys.readouterr().err


def test_embed_writes_posteriors(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "embed", model, "the cat", "a dog runs", "-o", tmp_path / "x.npy")
    table = np.load(tmp_path / "x.npy")
    assert table.shape == (5, 4)
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-5)
    rows = answer(capsys, "embed", model, "the cat", "--what", "viterbi")
    assert [row["probability"] for row in rows] == [1.0, 1.0]


def test_export_to_arrays(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "export", model, "-o", tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as arrays:
        for name in ("startprob", "transmat", "emissionprob"):
            np.testing.assert_allclose(arrays[name].sum(-1), 1, atol=1e-12)


def test_export_to_hmmlearn(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hmmlearn", reason="hmmlearn is not installed")
    answer(capsys, "export", model, "-o", tmp_path / "m.pkl")
    other = pickle.loads((tmp_path / "m.pkl").read_bytes())
    loaded = trellis.load(model)
    ids = loaded.encode_line("the cat sees", eos=True)[0].numpy()
    assert other.score(ids[:, None]) == pytest.approx(loaded.log_prob("the cat sees"), abs=1e-4)


def test_cache_shows_and_clears(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answer(capsys, "cache")) == 1
    assert len(answer(capsys, "cache", "--clear")) == 1
    assert answer(capsys, "cache") == []


def test_cluster_writes_and_shows_paths(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "cluster", text, "-c", "3", "-o", tmp_path / "p.txt", "--alone", "dog")
    assert (facts["words"], facts["classes"]) == (9, 3)
    shown = answer(capsys, "cluster", "--show", tmp_path / "p.txt")["paths"]
    assert ["dog"] in shown.values()
    assert sum(map(len, shown.values())) == 9
    assert answer(capsys, "cluster", text, "--cloned")["classes"] == 9
    assert run("cluster", "--show", tmp_path / "p.txt") == 0
    assert "dog" in capsys.readouterr().out


def test_people_get_tables(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["states", model], ["info", model], ["eval", model], ["sample", model], ["cache"]):
        assert run(*words) == 0
        assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "option",
    [
        ["--states", "9"],
        ["--model", "ngram"],
        ["--resume", "--states", "9"],
        ["--resume", "--set", "train.learner=gradient"],
    ],
)
def test_a_refused_training_changes_nothing(
    option: list[str], model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert (
        run("train", "--data", text, "--run", model, "--quiet", *(SMALL if "ngram" not in option else []), *option) == 2
    )
    assert "choose another folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_a_training_that_failed_at_once_does_not_block_its_folder(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", text, "--run", tmp_path / "r", "--quiet", *SMALL]
    assert run(*common, "--set", "train.learner=adam") == 2
    assert run(*common) == 0


def test_resuming_may_train_for_longer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--run", model, "--resume", "--set", "train.epochs=5", "--quiet") == 0
    assert json.loads((model / "results.json").read_text())["training"]["epoch"] == 5


def test_not_utf8_on_standard_input(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    assert run("score", model) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_impossible_text_is_valid_json(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, hard = tmp_path / "hard", ["--set", "train.pseudocount=0"]
    assert run("train", "--data", text, "--run", folder, "--quiet", *SMALL, *hard) == 0
    capsys.readouterr()
    (row,) = answer(capsys, "score", folder, "zebra")
    assert row["log_prob"] is row["perplexity"] is None
    assert run("infill", folder, "zebra ___") == 2
    assert "probability zero" in capsys.readouterr().err


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


@pytest.mark.parametrize("family", ["unigram", "bigram", "ngram"])
def test_models_without_states_answer_or_say_why_not(
    family: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / family
    assert run("train", "--model", family, "--data", text, "--run", folder, "--quiet") == 0
    assert run("sample", folder) == run("score", folder, "the cat") == run("info", folder) == run("eval", folder) == 0
    capsys.readouterr()
    for command in (["infill", folder, "a ___"], ["embed", folder, "a"], ["states", folder]):
        assert run(*command) == 2
        assert "no hidden states" in capsys.readouterr().err


def test_an_n_gram_model_as_arpa_and_back(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "run", tmp_path / "m.arpa"
    assert run("train", "--model", "ngram", "--set", "model.order=3", "--data", text, "--run", folder, "--quiet") == 0
    capsys.readouterr()
    rows = json.loads((folder / "results.json").read_text())["scores"]["rows"]
    assert [row["model"] for row in rows] == ["unigram", "bigram", "5-gram", "3-gram"]
    answer(capsys, "export", folder, "-o", file)
    ours, arpa = answer(capsys, "eval", folder, file, "--data", text, "--split", "all")
    assert arpa["perplexity"] == pytest.approx(ours["perplexity"])
    assert arpa["family"] == "3-gram"
    facts = answer(capsys, "info", file)
    assert facts["family"] == "ngram"
    assert len(facts["ngrams"]) == 3


@pytest.mark.parametrize("command", find_commands())
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"example: trellis {command}" in capsys.readouterr().out.replace("\n", " ")


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


def test_unknown_words_without_unk(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--data", text, "--run", tmp_path / "r", "--set", "data.unk=false", "--quiet", *SMALL) == 0
    assert run("score", tmp_path / "r", "the zebra") == 2
    assert "zebra" in capsys.readouterr().err


SETTINGS = {
    "model.states": 8, "batches.lanes": 4, "batches.window": 4, "train.epochs": 10, "train.learner": "gradient",
    "train.lr": 0.05, "train.schedule": "cosine", "train.average": 0.9, "train.checkpoint_steps": 3,
}  # fmt: skip
TRAINING = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")] + ["--quiet"]


def start_training(text: Path, folder: Path) -> subprocess.Popen[bytes]:
    words = ["-m", "trellis", "train", "--data", str(text), "--run", str(folder), "--resume", *TRAINING]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL)


def test_kill_9_and_resume_end_in_the_same_bits(text: Path, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert start_training(text, straight).wait() == 0
    rng, deaths = random.Random(0), 0
    while deaths < 3:
        process = start_training(text, killed)
        steps = last_step(killed) + 1
        while process.poll() is None and last_step(killed) < steps:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        deaths += process.wait() == -signal.SIGKILL
        if process.returncode == 0:
            break
    assert deaths > 0
    assert start_training(text, killed).wait() == 0
    first, second = (load_tensors(folder / "model.safetensors") for folder in (straight, killed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def last_step(folder: Path) -> int:
    """The latest step in the metrics, 0 where there are none."""
    try:
        return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError, ValueError):
        return 0


def test_an_interrupted_run_leaves_a_usable_checkpoint(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start_training(text, folder)
    while process.poll() is None and last_step(folder) == 0:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait() in (0, 130)
    assert (folder / "last.safetensors").exists()
    assert start_training(text, folder).wait() == 0


def test_states_can_be_measured(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "states", model, "--measures", "--split", "valid")
    assert 0 < facts["occupancy"] <= 1
    assert 1 <= facts["effective_states"] <= 4
    assert run("states", model, "--measures") == 0
    assert "visited_transition_entropy" in capsys.readouterr().out


def test_a_text_of_unknown_words_is_noted(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run("score", model, "zyx qwv vwx") == 0
    assert "3 of 3 words are unknown to the model" in caplog.text


def test_the_column_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,text\n" + "".join(f"{i},a b\n" for i in range(40)))
    options = "--states", "2", "--set", "train.epochs=1", "--run", tmp_path / "run", "--quiet"
    assert run("train", "--data", tmp_path / "t.csv", "--column", "text", *options) == 0
    assert 'column = "text"' in (tmp_path / "run" / "config.toml").read_text()
